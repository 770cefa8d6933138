"""
Arrays that constants alone make, such as masks.

What is repeated along a dimension is kept as NumPy keeps it, once (a stride of 0), and
computed once: a mask for a large batch is no larger than one for a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.ir import Operation, SSAValue

from distir.dialects.constants import draws_random_numbers
from distir.dialects.onnx_op import OnnxOp
from distir.interpreters.onnx_evaluator import computed
from distir.program import ancestors
from distir.transforms.patterns.match import shape_of

Array = npt.NDArray[Any]

_MOST_ELEMENTS = 1 << 24
"""Of arrays that are computed, not counting what is repeated."""

_ELEMENTWISE = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Neg", "Abs", "Min", "Max"),
        *("And", "Or", "Xor", "Not", "Equal", "Where", "Identity", "Cast", "CastLike"),
        *("Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
    )
)


class KnownArrays:
    """Finds the arrays of values; what was found on the way is kept for other values."""

    def __init__(self) -> None:
        self._found: dict[SSAValue, Array | None] = {}

    def of(self, value: SSAValue) -> Array | None:
        """
        The array that constants alone make through operators of ONNX, in the shape of the
        value; None for one that depends on anything else, or is large.
        """
        for op in _in_order(value):
            if all(result in self._found for result in op.results):
                continue
            inputs = [
                None if v is None else self._found.get(v) for v in op.input_values
            ]
            lacks = any(
                v is not None and i is None
                for v, i in zip(op.input_values, inputs, strict=True)
            )
            found = [] if lacks or draws_random_numbers(op) else _results(op, inputs)
            self._found.update(dict.fromkeys(op.results))
            for result, array in zip(op.results, found, strict=False):
                self._found[result] = array
        return self._found.get(value)


def once(array: Array) -> Array:
    """The array without what is repeated: such dimensions have size 1."""
    return array[tuple(slice(1) if s == 0 else slice(None) for s in array.strides)]


def _results(op: OnnxOp, inputs: Sequence[Array | None]) -> list[Array]:
    """What an operator makes of these arrays; nothing if that is unknown or large."""
    shapes = [shape_of(result) for result in op.results]
    name, given = op.name.removeprefix("onnx."), inputs
    if name == "Expand" and shapes[0] is not None and inputs[0] is not None:
        return [np.broadcast_to(inputs[0], shapes[0])]
    if name == "Unsqueeze" and inputs[0] is not None and inputs[1] is not None:
        return [np.expand_dims(inputs[0], tuple(inputs[1].tolist()))]
    if name in _ELEMENTWISE:
        rank = max((a.ndim for a in inputs if a is not None), default=0)
        given = _without_repeats([a for a in inputs if a is not None], rank)
        largest = prod(np.broadcast_shapes(*(a.shape for a in given)))
    else:
        largest = max((prod(shape or (0,)) for shape in shapes), default=0)
    if largest > _MOST_ELEMENTS:
        return []
    found = computed(op, given)
    if isinstance(found, Exception):
        return []
    return [
        np.broadcast_to(np.asarray(array), () if shape is None else shape)
        for array, shape in zip(found, shapes, strict=False)
    ]


def _without_repeats(arrays: Sequence[Array], rank: int) -> list[Array]:
    """
    The operands of an elementwise operator with one element, instead of all, of dimensions
    along which every one of them is repeated.
    """
    aligned = list(arrays)
    for dim in range(-rank, 0):
        reaching = [a for a in aligned if a.ndim >= -dim]
        if all(a.shape[dim] == 1 or a.strides[dim] == 0 for a in reaching):
            cut = (..., slice(1), *[slice(None)] * (-dim - 1))
            aligned = [a[cut] if a.ndim >= -dim else a for a in aligned]
    return aligned


def _in_order(value: SSAValue) -> list[OnnxOp]:
    """The operators that a value depends on, as far as they are ONNX's, operands first."""
    ops = [op for op in ancestors([value]) if isinstance(op, OnnxOp)]
    block = value.owner.parent_block() if isinstance(value.owner, Operation) else None
    if block is None:
        return []
    needed = set(ops)
    return [op for op in block.ops if isinstance(op, OnnxOp) and op in needed]
