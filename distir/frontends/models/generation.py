"""
The two steps of generation for builders of decoders. The step prefill fills a cache
with prompts; the step decode generates one token of each sequence from the cache.

Inputs and cache are the same as in imported inference programs. Token n of a sequence
is at position n of the cache, however much padding its prompt had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import ModuleOp, i1, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.paged_attention import PagedAttentionOp, PagedWriteOp
from distir.frontends.models.function_builder import FunctionBuilder
from distir.frontends.serving import (
    DECODE,
    PAGE_TABLE,
    PREFILL,
    ServingSizes,
    mark_inputs,
    mark_new_caches,
)
from distir.program import CACHE, ENTRY
from distir.program.entries import joined


class StepInputs(NamedTuple):
    """
    The inputs of a step of generation. `tokens` and `positions` are [batch, tokens];
    padding has position 0. `shared` are the inputs that all layers share: mask, places
    and table (see `LayerCache`).
    """

    tokens: SSAValue
    positions: SSAValue
    shared: list[SSAValue]


class LayerCache(NamedTuple):
    """
    The arguments of a layer for attention with a cache.

    - `mask`, [batch, 1, tokens, keys], is added to the scores of attention: 0 where a
      query may attend to a key, and the lowest number elsewhere;
    - `places` [batch] are the positions in the cache of the first token that the step
      reads of each sequence; with pages, they are the numbers of these tokens in their
      sequences, negative for padding;
    - `table` [batch, columns] has the pages of each sequence, or is None without pages;
    - `keys` and `values` have the shape `ServingSizes.cache_shape`.
    """

    mask: SSAValue
    places: SSAValue
    table: SSAValue | None
    keys: SSAValue
    values: SSAValue


@dataclass(frozen=True)
class GenerationStep:
    """A step of generation. `entry` is the name of the step, `prefill` or `decode`."""

    entry: str
    sizes: ServingSizes

    @property
    def tokens(self) -> int:
        """The number of tokens of each sequence that the step reads."""
        return 1 if self.entry == DECODE else self.sizes.prompt

    @property
    def keys(self) -> int:
        """The number of keys to which the step's tokens may attend."""
        return self.sizes.slots if self.entry == DECODE else self.sizes.prompt

    def inputs(self, main: FunctionBuilder) -> StepInputs:
        """
        Adds the inputs of the step to the entry function `main`: `input_ids` [batch,
        tokens], `padding` [batch] for prefill or `positions` [batch] for decode, and
        with pages also `pages` [batch, columns].
        """
        batch, cache = self.sizes.batch, self.sizes.slots
        tokens = main.argument(
            "input_ids", (batch, self.tokens), role="input", element=i64
        )
        if self.entry == DECODE:
            first = main.argument("positions", (batch,), role="input", element=i64)
            positions = _column(main, first, 1)
            slots = main.constant(np.arange(cache)[None])
            sees = main.op("LessOrEqual", [slots, positions], (batch, cache), i1)
            sees = _column(main, sees, 1)
        else:
            padding = main.argument("padding", (batch,), role="input", element=i64)
            positions, sees = self._of_prompts(main, padding)
            first = main.op("Neg", [padding], (batch,), i64)
        if self.sizes.paging is None:
            size = main.constant(np.array(cache))
            first = main.op("Mod", [first, size], (batch,), i64, fmod=0)
            tables = []
        else:
            shape = (batch, self.sizes.columns)
            tables = [main.argument(PAGE_TABLE, shape, role="input", element=i64)]
        zero = main.constant(np.array(0, main.dtype))
        lowest = main.constant(np.array(ml_dtypes.finfo(main.dtype).min, main.dtype))
        mask = main.op("Where", [sees, zero, lowest], shape_of(sees))
        shared = [_column(main, mask, 1), first, *tables]
        return StepInputs(tokens, positions, shared)

    def _of_prompts(
        self, main: FunctionBuilder, padding: SSAValue
    ) -> tuple[SSAValue, SSAValue]:
        """
        Returns the positions of the tokens of padded prompts, and a mask [batch,
        tokens, tokens]. The mask is true where the token of the row may attend to the
        token of the column. A padding token attends only to itself.
        """
        batch, length = self.sizes.batch, self.tokens
        row, square = (batch, length), (batch, length, length)
        zero = main.constant(np.array(0))
        places = main.constant(np.arange(length)[None])
        positions = main.op("Sub", [places, _column(main, padding, 1)], row, i64)
        queries, keys = _column(main, positions, 2), _column(main, positions, 1)
        back = main.op("Sub", [queries, keys], square, i64)
        is_before = main.op("GreaterOrEqual", [back, zero], square, i1)
        is_token = main.op("GreaterOrEqual", [keys, zero], (batch, 1, length), i1)
        is_seen = main.op("And", [is_before, is_token], square, i1)
        is_itself = main.op("Equal", [back, zero], square, i1)
        sees = main.op("Or", [is_seen, is_itself], square, i1)
        return main.op("Clip", [positions, zero], row, i64), sees

    def caches(
        self, main: FunctionBuilder, layers: int, heads: int, width: int
    ) -> list[list[SSAValue]]:
        """
        Adds the cached keys and values of each layer as arguments of the entry
        function, and returns them by layer.
        """
        shape = self.sizes.cache_shape(heads, width)
        names = _names(layers)
        values = [main.argument(name, shape, role=CACHE) for name in names]
        return [values[i : i + 2] for i in range(0, len(values), 2)]

    def layer_arguments(self, b: FunctionBuilder, heads: int, width: int) -> LayerCache:
        """
        Adds to the function of a layer the arguments that attention with a cache needs,
        and returns these arguments.
        """
        batch, columns = self.sizes.batch, self.sizes.columns
        mask = b.argument("mask", (batch, 1, self.tokens, self.keys), role=None)
        places = b.argument("places", (batch,), role=None, element=i64)
        table = None
        if self.sizes.paging is not None:
            table = b.argument(PAGE_TABLE, (batch, columns), role=None, element=i64)
        shape = self.sizes.cache_shape(heads, width)
        keys, values = (
            b.argument(name, shape, role=CACHE) for name in _kinds("cache.*")
        )
        return LayerCache(mask, places, table, keys, values)

    def last(self, main: FunctionBuilder, h: SSAValue) -> SSAValue:
        """Returns the hidden states of the last token, [batch, 1, d_model]."""
        batch, length, width = shape_of(h)
        if length == 1:
            return h
        ends = [main.constant(np.array([n])) for n in (length - 1, length, 1)]
        return main.op("Slice", [h, *ends], (batch, 1, width))

    def finish(
        self,
        main: FunctionBuilder,
        logits: SSAValue,
        new: Sequence[SSAValue],
        functions: Sequence[FuncOp],
    ) -> ModuleOp:
        """
        Returns the program of the step. `new` has the keys and values of all layers
        after the step, and `functions` the functions that the step calls.
        """
        names = _names(len(new) // 2)
        function = main.finish(ENTRY, [logits, *new], ["logits", *names])
        mark_inputs(function, self.sizes)
        mark_new_caches(function, names)
        return ModuleOp([function, *functions])

    def attention(
        self,
        b: FunctionBuilder,
        own: tuple[SSAValue, SSAValue, SSAValue],
        cache: LayerCache,
    ) -> tuple[SSAValue, list[SSAValue]]:
        """
        Adds attention of the step's queries to the cached keys. Returns the result of
        attention, and the keys and values in the cache after the step.

        `own` are the queries, keys and values of the step's tokens, each [batch, heads,
        tokens, width of a head]; keys and values may have fewer heads than queries. The
        result has the shape of the queries.
        """
        q, *given = own
        if cache.table is not None:
            return self._paged_attention(b, q, given, cache, cache.table)
        new = [
            b.op(
                "TensorScatter",
                [old, value, cache.places],
                shape_of(old),
                axis=-2,
                mode="circular",
            )
            for old, value in zip((cache.keys, cache.values), given, strict=True)
        ]
        keys = new if self.entry == DECODE else given
        return b.op("Attention", [q, *keys, cache.mask], shape_of(q)), new

    def _paged_attention(
        self,
        b: FunctionBuilder,
        q: SSAValue,
        given: Sequence[SSAValue],
        cache: LayerCache,
        table: SSAValue,
    ) -> tuple[SSAValue, list[SSAValue]]:
        """
        Adds attention of the queries `q`, with the cache in the pages of `table`.
        `given` are the keys and values of the step's tokens. Returns the result and the
        new cache.
        """
        new = [
            b.add(PagedWriteOp(old, value, table, cache.places))[0]
            for old, value in zip((cache.keys, cache.values), given, strict=True)
        ]
        if self.entry == PREFILL:
            return b.op("Attention", [q, *given, cache.mask], shape_of(q)), new
        keys, values = new
        (found,) = b.add(PagedAttentionOp(q, keys, values, table, cache.mask))
        return found, new


def build_serving(
    builder: Callable[..., ModuleOp], sizes: ServingSizes, **options: Any
) -> ModuleOp:
    """
    Returns an inference program with the entries prefill and decode, which share
    parameters and the cache. `builder` builds the program of one step from `options`
    and the keywords `batch`, `seq` and `step`. Raises DistIRError if an option is out
    of range.
    """
    steps = [GenerationStep(entry, sizes) for entry in (PREFILL, DECODE)]
    return joined(
        {
            step.entry: builder(
                batch=sizes.batch, seq=step.tokens, step=step, **options
            )
            for step in steps
        }
    )


def _kinds(layer: str) -> list[str]:
    """Returns the names of the cached keys and of the cached values of `layer`."""
    return [f"{layer}.{kind}" for kind in ("key", "value")]


def _names(layers: int) -> list[str]:
    """Returns the names of the cached keys and values of all layers, layer by layer."""
    return [name for i in range(layers) for name in _kinds(f"cache.{i}")]


def _column(b: FunctionBuilder, value: SSAValue, dim: int) -> SSAValue:
    """Returns `value` with a new dimension of size 1 at the position `dim`."""
    shape = [*shape_of(value)[:dim], 1, *shape_of(value)[dim:]]
    element = value.type.element_type  # pyright: ignore
    return b.op("Unsqueeze", [value, b.constant(np.array([dim]))], shape, element)
