"""
Modules around a Hugging Face decoder for the two steps of generation.

Prefill takes prompts [batch, tokens], padded on the left, and the number of padding
tokens of each prompt. It fills the cache and returns the logits of the last token.
Decode takes one token of each sequence and the number of tokens before this token, and
returns the logits of this token. In both steps the tokens of a sequence are numbered
from 0. The cache therefore does not depend on the padding, and the sequences of a batch
may differ in length.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Mapping
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from distir.frontends.serving import ServingSizes
from distir.frontends.torch.serving.caches import Content, StepCache, layer_windows

_MODELS = "transformers.models."


class StepModule(nn.Module):
    """
    A step of generation. The step has the parameters of `model` under the names that
    they have in `model`, and a cache of the sizes `sizes`.
    """

    def __init__(self, model: Any, sizes: ServingSizes):
        super().__init__()
        for name, child in model.named_children():
            self.add_module(name, child)
        # Not a child: its own children are registered here, under the names of the model.
        self.__dict__["_source"] = model
        self.sizes = sizes
        self.eval()

    @property
    def source_model(self) -> Any:
        """The wrapped Hugging Face model."""
        return self.__dict__["_source"]

    @property
    def config(self) -> Any:
        """The configuration of the model."""
        return self.source_model.config

    def dtype(self) -> torch.dtype:
        """Returns the type of the model's first floating-point parameter."""
        return next(p.dtype for p in self.parameters() if p.is_floating_point())

    def run(
        self,
        tokens: Tensor,
        positions: Tensor,
        masks: dict[str, Tensor],
        seen: Tensor,
        cache: StepCache,
    ) -> Tensor:
        """
        Returns the logits of the last token, [batch, 1, vocabulary]. `positions`
        [batch, tokens] are the positions of `tokens`. `masks` has the attention mask of
        each kind of layer. `seen` [batch, tokens] is 1 for tokens and 0 for padding.
        """
        model = self.source_model
        given: dict[str, Any] = {"input_ids": tokens, "attention_mask": seen}
        if "position_ids" in signature(model.forward).parameters:
            given["position_ids"] = positions
        with masks_given(masks):
            output = model.forward(
                **given, cache=cache, use_cache=True, return_dict=True, logits_to_keep=1
            )
        return output.logits

    def masks(self, positions: Tensor, keys: Mapping[int, Tensor]) -> dict[str, Tensor]:
        """
        Returns the attention mask of each kind of layer, [batch, 1, tokens, keys]: 0
        where a query may attend to a key, and the lowest number of the type elsewhere.
        `positions` [batch, tokens] are the positions of the queries. `keys` maps each
        window to the positions of the keys [batch, keys]. Padding tokens have negative
        positions and attend only to themselves.
        """
        dtype = self.dtype()
        found: dict[str, Tensor] = {}
        for window, of_keys in keys.items():
            back = positions[:, :, None] - of_keys[:, None, :]
            sees = (back >= 0) & (of_keys >= 0)[:, None, :] | (back == 0)
            if window:
                sees = sees & (back < window)
            zero = torch.zeros((), dtype=dtype)
            lowest = torch.full((), torch.finfo(dtype).min, dtype=dtype)
            kind = "sliding_attention" if window else "full_attention"
            found[kind] = torch.where(sees, zero, lowest)[:, None]
        return found

    def windows(self) -> list[int]:
        """
        Returns the distinct windows of the attention layers, in ascending order; 0
        means attention to all tokens.
        """
        return sorted({w for w in layer_windows(self.config) if w is not None})


BIDIRECTIONAL = "bidirectional"
"""The kind of layer that attends to all tokens of a prompt, but for its padding."""

_MASKS = {
    "create_causal_mask": "full_attention",
    "create_sliding_window_causal_mask": "sliding_attention",
    "create_bidirectional_mask": BIDIRECTIONAL,
}
"""The functions of transformers that make masks, each with its kind of layer."""


@contextlib.contextmanager
def masks_given(masks: Mapping[str, Tensor]) -> Generator[None]:
    """
    A context manager that gives models of transformers the masks `masks` in place of
    masks computed from the state of their cache.
    """
    known = {f: k for f, k in _MASKS.items() if k in masks or k != BIDIRECTIONAL}
    changed: list[tuple[Any, str, Any]] = []
    for name, module in list(sys.modules.items()):
        for function, kind in known.items() if name.startswith(_MODELS) else ():
            original = vars(module).get(function)
            if original is not None:
                changed.append((module, function, original))
                setattr(module, function, partial(_mask, masks, kind))
    try:
        yield
    finally:
        for module, function, original in changed:
            setattr(module, function, original)


def _mask(masks: Mapping[str, Tensor], kind: str, **_: Any) -> Tensor | None:
    return masks.get(kind)


class Prefill(StepModule):
    """
    Fills the cache with prompts. `input_ids` is [batch, tokens], padded on the left;
    `padding` [batch] is the number of padding tokens of each prompt.
    """

    def forward(
        self,
        input_ids: Tensor,
        padding: Tensor,
        cache: Content | None,
        pages: Tensor | None = None,
    ) -> Any:
        """
        Returns the logits of the last token and the new content of the cache. If
        `cache` is None, only records the shapes of the cache. `pages` [batch, columns]
        has the pages of each sequence, if the cache has pages.
        """
        length = input_ids.shape[1]
        positions = torch.arange(length)[None, :] - padding[:, None]
        keys = dict.fromkeys(self.windows(), positions)
        step = StepCache(self.config, self.sizes, -padding, length, cache, pages)
        logits = self.run(
            input_ids,
            positions.clamp(min=0),
            self.masks(positions, keys),
            (positions >= 0).to(torch.int64),
            step,
        )
        if cache is None:
            self.__dict__["discovered"] = step.shapes()
        return {"logits": logits, "cache": step.new()}


class Decode(StepModule):
    """
    Generates one token of each sequence. `input_ids` is [batch, 1]; `positions` [batch]
    is the number of tokens of each sequence in the cache.
    """

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        cache: Content,
        pages: Tensor | None = None,
    ) -> Any:
        """
        Returns the logits of the token and the new content of the cache. `pages`
        [batch, columns] has the pages of each sequence, if the cache has pages.
        """
        keys: dict[int, Tensor] = {}
        for window in self.windows():
            size = min(self.sizes.cache, window) if window else self.sizes.slots
            # The newest token of each slot: the token itself is in one of them.
            back = (positions[:, None] - torch.arange(size)[None, :]) % size
            keys[window] = positions[:, None] - back
        queries = positions[:, None]
        step = StepCache(self.config, self.sizes, positions, None, cache, pages)
        logits = self.run(
            input_ids,
            queries,
            self.masks(queries, keys),
            torch.ones_like(input_ids),
            step,
        )
        return {"logits": logits, "cache": step.new()}
