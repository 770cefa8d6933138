"""
Modules around a Hugging Face encoder-decoder for the two steps of generation.

Prefill takes prompts [batch, tokens], padded on the left, and the number of padding
tokens of each prompt. It runs the encoder on the prompts and the decoder on its start
token, fills the caches of the decoder's self-attention and cross-attention, and returns
the logits of the start token. Decode takes one token of each sequence, the number of
the decoder's tokens before this token, and the padding of the prompts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, EncoderDecoderCache

from distir.errors import DistIRError
from distir.frontends.torch.serving.caches import AttentionStep, Content, written
from distir.frontends.torch.serving.modules import (
    BIDIRECTIONAL,
    StepModule,
    masks_given,
)

SUPPORTED = ("t5", "mt5")
"""The kinds of encoder-decoders whose steps of generation exist, by `model_type`."""

SELF, CROSS = "layer", "cross"
"""
The beginnings of the names of caches: of a layer's attention to the decoder's own
tokens, and of its attention to the prompt.
"""


class CrossStep(CacheLayerMixin):
    """
    The keys and values of a decoder layer's attention to the prompts, each [batch,
    heads, tokens, width]. Prefill computes them, and decode reads them.
    """

    def __init__(self, content: Mapping[str, Tensor] | None):
        super().__init__()
        self.content, self.new = content or {}, dict[str, Tensor]()
        self._made: dict[str, Tensor] = {}
        self.keys, self.values = self.content.get("key"), self.content.get("value")

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing, because the caller provides the tensors."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Records the keys and values of the prompts, and returns them."""
        self._made = {"key": key_states, "value": value_states}
        first = torch.zeros(key_states.shape[0], dtype=torch.int64)
        self.new = {
            name: written(self.content[name], made, first)
            for name, made in self._made.items()
            if self.content
        }
        return key_states, value_states

    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Returns the shape and type of each tensor, after a step without content."""
        return {name: (tuple(x.shape), x.dtype) for name, x in self._made.items()}

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns the number of new keys, and 0 as the offset of the first key."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Returns 0, because the caller gives positions to the model."""
        return 0

    def get_max_length(self) -> int:
        """Returns -1: there is no limit besides the length of the prompts."""
        return -1


class _Caches(EncoderDecoderCache):
    """
    The caches of an encoder-decoder in one step of generation.

    - `slots`: the number of tokens of the decoder for which the caches have room;
    - `first`: the index of the first decoder token of the step, for each sequence;
    - `tokens`: the number of decoder tokens in prefill, and None in decode;
    - `content`: the tensors before the step by layer and name; None in a run that only
      finds the shapes of the tensors.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        first: Tensor,
        tokens: int | None,
        content: Content | None,
    ):
        own: dict[str, Any] = {}
        for i in range(layers):
            held, read = (
                None if content is None else content[f"{kind}{i}"]
                for kind in (SELF, CROSS)
            )
            own[f"{SELF}{i}"] = AttentionStep(slots, first, tokens, held)
            own[f"{CROSS}{i}"] = CrossStep(read)
        parts = (
            Cache(layers=[own[f"{kind}{i}"] for i in range(layers)])
            for kind in (SELF, CROSS)
        )
        super().__init__(*parts)
        self.steps = own
        # In decode the keys and values of the prompts are there already.
        self.is_updated = dict.fromkeys(range(layers), tokens is None)

    def new(self) -> dict[str, dict[str, Tensor]]:
        """Returns the tensors that the step replaces, by layer and name."""
        return {name: step.new for name, step in self.steps.items() if step.new}

    def shapes(self) -> dict[str, dict[str, tuple[tuple[int, ...], torch.dtype]]]:
        """Returns the shape and type of each tensor, by layer and name."""
        return {name: step.shapes() for name, step in self.steps.items()}


class _EncoderDecoderStep(StepModule):
    """
    A step of generation of an encoder-decoder. `sizes.cache` is the number of tokens
    that the model generates.
    """

    def run_decoder(
        self,
        tokens: Tensor,
        positions: Tensor,
        padding: Tensor,
        length: int,
        cache: _Caches,
        **given: Any,
    ) -> Tensor:
        """
        Returns the logits of the decoder's tokens `tokens` [batch, 1] at `positions`
        [batch]. The prompts have `length` tokens, and the first `padding` [batch]
        tokens of a prompt are padding. `given` are further arguments of the model.
        """
        lowest = torch.finfo(self.dtype()).min
        seen = torch.arange(length)[None, :] >= padding[:, None]
        of_prompts = torch.where(
            seen,
            torch.zeros((), dtype=self.dtype()),
            torch.full((), lowest, dtype=self.dtype()),
        )[:, None, None, :]
        queries = positions[:, None]
        is_prefill = not any(cache.is_updated.values())
        keys = queries if is_prefill else torch.arange(self.sizes.cache)[None, :]
        masks = {**self.masks(queries, {0: keys}), BIDIRECTIONAL: of_prompts}
        model = self.source_model
        with masks_given(masks), _biases_at(model, positions, is_prefill):
            output = model.forward(
                attention_mask=seen.to(torch.int64),
                decoder_input_ids=tokens,
                cache=cache,
                use_cache=True,
                return_dict=True,
                **given,
            )
        return output.logits

    def caches(
        self, first: Tensor, tokens: int | None, content: Content | None
    ) -> _Caches:
        """
        Returns the caches of a step. `first` is the first token of each sequence,
        `tokens` the length of the prompts (None in decode), and `content` has the
        tensors before the step.
        """
        layers = getattr(self.config, "num_decoder_layers", None)
        count = self.config.num_hidden_layers if layers is None else layers
        return _Caches(count, self.sizes.cache, first, tokens, content)


@contextlib.contextmanager
def _biases_at(model: Any, positions: Tensor, is_prefill: bool) -> Generator[None]:
    """
    A context manager in which the decoder of a T5 computes its position biases for
    queries at `positions` [batch], one for each sequence. Without the context manager,
    transformers assumes the same position in all sequences. In prefill the only key is
    the start token.
    """
    changed = list[Any]()
    for module in model.modules():
        if getattr(module, "has_relative_attention_bias", False) and module.is_decoder:
            module.compute_bias = partial(_bias, module, positions, is_prefill)
            changed.append(module)
    try:
        yield
    finally:
        for module in changed:
            del module.compute_bias


def _bias(
    module: Any,
    positions: Tensor,
    is_prefill: bool,
    query_length: int,
    key_length: int,
    **_: Any,
) -> Tensor:
    keys = positions[:, None] if is_prefill else torch.arange(key_length)[None, :]
    buckets = module._relative_position_bucket(
        keys - positions[:, None],
        bidirectional=False,
        num_buckets=module.relative_attention_num_buckets,
        max_distance=module.relative_attention_max_distance,
    )
    # [batch, keys, heads] -> [batch, heads, 1, keys]
    return module.relative_attention_bias(buckets).permute(0, 2, 1)[:, :, None, :]


def start_token(config: Any) -> int:
    """
    Returns the token with which the decoder of an encoder-decoder begins. Raises
    DistIRError if DistIR has no generation steps for this kind of model, or if the
    configuration does not name the token.
    """
    if config.model_type not in SUPPORTED:
        raise DistIRError(
            f"--serve has no steps of generation for encoder-decoders of the type "
            f"{config.model_type!r}; it has them for {' and '.join(SUPPORTED)}"
        )
    token = getattr(config, "decoder_start_token_id", None)
    if token is None:
        raise DistIRError(
            "the configuration does not say with which token the decoder begins; add "
            "decoder_start_token_id"
        )
    return token


class EncodePrompts(_EncoderDecoderStep):
    """
    Runs the encoder on prompts, and the decoder on the start token. `input_ids` is
    [batch, tokens], padded on the left; `padding` [batch] is the number of padding
    tokens of each prompt.
    """

    def forward(self, input_ids: Tensor, padding: Tensor, cache: Content | None) -> Any:
        """
        Returns the logits of the start token and the new content of the caches. If
        `cache` is None, only the shapes of the caches are recorded.
        """
        batch, length = input_ids.shape
        tokens = torch.full((batch, 1), start_token(self.config), dtype=torch.int64)
        positions = torch.zeros_like(padding)
        step = self.caches(positions, 1, cache)
        logits = self.run_decoder(
            *(tokens, positions, padding, length, step), input_ids=input_ids
        )
        if cache is None:
            self.__dict__["discovered"] = step.shapes()
        return {"logits": logits, "cache": step.new()}


class DecodeBehindPrompts(_EncoderDecoderStep):
    """
    Generates one token of each sequence. `input_ids` is [batch, 1]; `positions` [batch]
    is the number of the decoder's tokens in the cache, and `padding` [batch] the number
    of padding tokens of each prompt.
    """

    def forward(
        self, input_ids: Tensor, positions: Tensor, padding: Tensor, cache: Content
    ) -> Any:
        """Returns the logits of the token and the new content of the caches."""
        length = cache[f"{CROSS}0"]["key"].shape[2]
        step = self.caches(positions, None, cache)
        # Attention reads keys and values of the prompts from the cache, not these.
        states = torch.zeros(
            len(input_ids), 1, self.config.hidden_size, dtype=self.dtype()
        )
        logits = self.run_decoder(
            *(input_ids, positions, padding, length, step), encoder_outputs=(states,)
        )
        return {"logits": logits, "cache": step.new()}
