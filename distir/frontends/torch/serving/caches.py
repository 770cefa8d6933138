"""
Static caches of decoders: each layer's state of past tokens, as tensors that a step
takes and returns.

A model of transformers calls its cache while it runs. `StepCache` replaces this cache.
`StepCache` computes the new content of each tensor from the old content, without
writing in place, so that an exported program has the tensors as arguments and results.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionLayer

from distir.errors import DistIRError
from distir.frontends.serving import ServingSizes
from distir.frontends.torch.export.functions import train_node

Content = Mapping[str, Mapping[str, Tensor]]
"""The tensors of a cache, by layer and name."""


def written(cache: Tensor, new: Tensor, places: Tensor) -> Tensor:
    """
    Returns `cache` [batch, heads, slots, width] with `new` [batch, heads, tokens,
    width] written into it. A slot has the keys or values of one token. The tokens of
    sequence b go to the slots from `places[b]` on, and continue at slot 0 after the
    last slot. Exports as ONNX's TensorScatter.
    """
    if torch.compiler.is_exporting():
        return train_node("cache_write", (cache, new, places), cache.shape, cache)
    slots = (places[:, None] + torch.arange(new.shape[2])) % cache.shape[2]
    return cache.scatter(2, slots[:, None, :, None].expand_as(new), new)


def paged_written(pool: Tensor, new: Tensor, table: Tensor, first: Tensor) -> Tensor:
    """
    Returns `pool` [pools, pages, heads, page size, width] with `new` [batch, heads,
    tokens, width] written into the pages that `table` [batch, columns] gives to each
    sequence. `first[b]` is the number of the first token of sequence b. Skips tokens
    with a negative number. Exports as `train.paged_write`.
    """
    if torch.compiler.is_exporting():
        return train_node("paged_write", (pool, new, table, first), pool.shape, pool)
    size = pool.shape[3]
    places = first[:, None] + torch.arange(new.shape[2])
    is_token = places >= 0
    places = places.clamp(min=0)
    pages = table.gather(1, places // size)
    pools = torch.arange(len(table))[:, None] // (len(table) // pool.shape[0])
    where = (pools.expand_as(pages), pages, places % size)
    number, page, slot = (index[is_token] for index in where)
    found = pool.clone()
    found[number, page, :, slot] = new.transpose(1, 2)[is_token]
    return found


def paged_read(pool: Tensor, table: Tensor) -> Tensor:
    """
    Returns the tokens of each sequence, [batch, heads, columns * page size, width],
    from the pages in `pool` that `table` [batch, columns] gives to the sequence.
    Exports as `train.paged_read`.
    """
    (batch, columns), (_, _, heads, size, width) = table.shape, pool.shape
    shape = (batch, heads, columns * size, width)
    if torch.compiler.is_exporting():
        return train_node("paged_read", (pool, table), shape, pool)
    pools = torch.arange(batch)[:, None] // (batch // pool.shape[0])
    return pool[pools, table].transpose(1, 2).reshape(shape)


class _LayerContent(ABC):
    """
    The cache of one layer in a step. `content` has the layer's tensors before the step,
    by name, and `new` has the tensors after the step.
    """

    content: Mapping[str, Tensor]
    new: dict[str, Tensor]

    @abstractmethod
    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """
        Returns the shape and type of each tensor of the cache. Call this after a step
        without content.
        """


class AttentionStep(CacheLayerMixin, _LayerContent):
    """
    The keys and values of an attention layer, each [batch, heads, slots, width].

    Token n of a sequence is in slot n. In a layer with a window, which forgets older
    tokens, token n is in slot n modulo `slots`. `tokens` is the length of the prompts
    in prefill, and None in decode. `first` [batch] is the index of the first token that
    the step computes for each sequence; in prefill the index is minus the number of
    padding tokens.
    """

    def __init__(
        self,
        slots: int,
        first: Tensor,
        tokens: int | None,
        content: Mapping[str, Tensor] | None,
    ):
        super().__init__()
        self.slots, self.first, self.tokens = slots, first, tokens
        self.content, self.new = content or {}, {}
        self.is_discovering = content is None
        self._made: dict[str, Tensor] = {}

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Does nothing, because the caller provides the tensors."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """
        Records the new content of the cache. Returns the keys and values for attention:
        of the prompt in prefill, and of all slots in decode.
        """
        own = {"key": key_states, "value": value_states}
        self._made = own
        if self.is_discovering:
            return key_states, value_states
        kept = own
        first = self.first
        if self.tokens is not None and self.tokens > self.slots:
            kept = {n: x[:, :, -self.slots :] for n, x in own.items()}
            first = first + (self.tokens - self.slots)
        places = first % self.slots
        self.new = {n: written(self.content[n], x, places) for n, x in kept.items()}
        if self.tokens is not None:
            return key_states, value_states
        return self.new["key"], self.new["value"]

    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        return {
            name: ((*x.shape[:2], self.slots, x.shape[3]), x.dtype)
            for name, x in self._made.items()
        }

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """
        Returns the number of keys, and 0 as the offset of the first key. The caller
        gives the masks to the model.
        """
        return (self.slots if self.tokens is None else query_length), 0

    def get_seq_length(self) -> int:
        """Returns 0, because the caller gives positions to the model."""
        return 0

    def get_max_length(self) -> int:
        """Returns the number of slots."""
        return self.slots


class PagedStep(AttentionStep):
    """
    The keys and values of an attention layer in pages, each [pools, pages, heads, page
    size, width]. `table` [batch, columns] has the pages of each sequence. Token n of a
    sequence is in slot n modulo the page size of page n // page size.
    """

    def __init__(
        self,
        sizes: ServingSizes,
        table: Tensor,
        first: Tensor,
        tokens: int | None,
        content: Mapping[str, Tensor] | None,
    ):
        super().__init__(sizes.slots, first, tokens, content)
        self.sizes, self.table = sizes, table

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """
        Records the new content of the pages. Returns the keys and values for attention:
        of the prompt in prefill, and of all pages of a sequence in decode.
        """
        own = {"key": key_states, "value": value_states}
        self._made = own
        if self.is_discovering:
            return key_states, value_states
        self.new = {
            n: paged_written(self.content[n], x, self.table, self.first)
            for n, x in own.items()
        }
        if self.tokens is not None:
            return key_states, value_states
        keys, values = (paged_read(self.new[n], self.table) for n in own)
        return keys, values

    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        return {
            name: (self.sizes.cache_shape(x.shape[1], x.shape[3]), x.dtype)
            for name, x in self._made.items()
        }


class StateStep(LinearAttentionLayer, _LayerContent):
    """
    The states of a state-space layer: `conv` [batch, channels, kernel], the last inputs
    of the layer's convolution, and `recurrent`, the recurrent state. `tokens` is the
    length of the prompts in prefill, and None in decode.
    """

    def __init__(self, tokens: int | None, content: Mapping[str, Tensor] | None):
        super().__init__()
        self.new = {}
        self.content = content or {}
        if tokens is None:
            # Models overwrite the states that they get.
            self.new = {name: x.clone() for name, x in self.content.items()}
            self.has_previous_state[0] = True
            self.conv_states[0] = self.new["conv"]
            self.recurrent_states[0] = self.new["recurrent"]

    def update_conv_state(
        self,
        conv_states: Tensor,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """
        Records the last inputs of the convolution. Returns the inputs for this step:
        the inputs from earlier steps, if any, then the new inputs, padded with zeros to
        the kernel's size.
        """
        length = conv_kernel_size or conv_states.shape[-1]
        if self.has_previous_state[state_idx]:
            conv_states = torch.cat([self.new["conv"], conv_states], dim=-1)
        missing = length - conv_states.shape[-1]
        if missing > 0:
            conv_states = torch.nn.functional.pad(conv_states, (missing, 0))
        self.new["conv"] = conv_states[..., -length:]
        return conv_states

    def update_recurrent_state(
        self, recurrent_states: Tensor, state_idx: int = 0, **kwargs: Any
    ) -> Tensor:
        """Records the new recurrent state, and returns it."""
        self.new["recurrent"] = recurrent_states
        return recurrent_states

    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        return {name: (tuple(x.shape), x.dtype) for name, x in self.new.items()}


_ATTENTION = ("full_attention", "sliding_attention")
_STATES = ("linear_attention",)


class StepCache(Cache):
    """
    The cache of a model in one step of generation, with the sizes `sizes`.

    - `first`: the index of the first token that the step computes, for each sequence;
    - `tokens`: the length of the prompts in prefill, and None in decode;
    - `content`: the tensors before the step by layer and name; None in a run that only
      finds the shapes of the tensors;
    - `table`: the pages of each sequence, [batch, columns], or None. Only layers that
      attend to all tokens keep their keys and values in pages.

    Raises DistIRError for a kind of layer without a static cache.
    """

    def __init__(
        self,
        config: Any,
        sizes: ServingSizes,
        first: Tensor,
        tokens: int | None,
        content: Mapping[str, Mapping[str, Tensor]] | None,
        table: Tensor | None,
    ):
        layers: list[Any] = []
        for index, window in enumerate(layer_windows(config)):
            own = None if content is None else content[f"layer{index}"]
            if window is None:
                layers.append(StateStep(tokens, own))
            elif table is not None and not window:
                layers.append(PagedStep(sizes, table, first, tokens, own))
            else:
                slots = min(sizes.cache, window or sizes.cache)
                layers.append(AttentionStep(slots, first, tokens, own))
        super().__init__(layers=layers)

    def new(self) -> dict[str, dict[str, Tensor]]:
        """Returns the tensors after the step, by layer and name."""
        return {f"layer{i}": layer.new for i, layer in enumerate(self._steps)}

    def shapes(self) -> dict[str, dict[str, tuple[tuple[int, ...], torch.dtype]]]:
        """Returns the shape and type of each tensor, by layer and name."""
        return {f"layer{i}": layer.shapes() for i, layer in enumerate(self._steps)}

    @property
    def _steps(self) -> list[Any]:
        return self.layers


def layer_windows(config: Any) -> list[int | None]:
    """
    Returns the attention window of each layer of a decoder, in tokens: 0 for attention
    to all tokens, and None for a state-space layer. Raises DistIRError for a kind of
    layer without a static cache.
    """
    from transformers.cache_utils import get_layer_types_and_kwargs

    kinds, kwargs = get_layer_types_and_kwargs(config.get_text_config(decoder=True))
    found: list[int | None] = []
    for index, (kind, own) in enumerate(zip(kinds, kwargs, strict=True)):
        if kind in _ATTENTION:
            found.append(own.get("sliding_window", 0))
        elif kind in _STATES:
            found.append(None)
        else:
            raise DistIRError(
                f"layer {index} of the model is of the kind {kind!r}, for which --serve "
                f"has no static cache; it has {', '.join((*_ATTENTION, *_STATES))}"
            )
    return found
