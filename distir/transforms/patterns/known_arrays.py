"""
Computes arrays that depend on constants alone, such as masks.

What is repeated along a dimension is stored and computed once, as NumPy does with a stride
of 0: a mask for a large batch is no larger than one for a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.ir import Block, Operation, SSAValue

from distir.dialects.constants import draws_random_numbers
from distir.dialects.onnx_op import OnnxOp
from distir.dialects.tensors import known_shape
from distir.interpreters.onnx_evaluator import computed

Array = npt.NDArray[Any]

_MOST_ELEMENTS = 1 << 24
"""The most elements of an array that is computed, repetitions not counted."""

_MOST_KEPT = 1 << 20
"""The most elements of an array that was asked for and is kept, repetitions not counted."""

_ELEMENTWISE = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Neg", "Abs", "Min", "Max"),
        *("And", "Or", "Xor", "Not", "Equal", "Where", "Identity", "Cast", "CastLike"),
        *("Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
    )
)


class KnownArrays:
    """Computes the arrays of values; intermediate arrays are kept for other values."""

    def __init__(self) -> None:
        self._found: dict[SSAValue, Array | None] = {}

    def of(self, value: SSAValue) -> Array | None:
        """
        Returns the array that operators of ONNX compute from constants alone, in the shape
        of the value; None for a value that depends on anything else, or is too large.
        """
        for op in self._unknown_before(value):
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
        found = self._found.get(value)
        if found is not None and once(found).size > _MOST_KEPT:
            del self._found[value]  # the mask of one layer of many
        return found

    def _unknown_before(self, value: SSAValue) -> list[OnnxOp]:
        """
        Returns the ONNX operators of the value's block that it depends on and whose results
        have not been looked at, operands first.
        """
        block = (
            value.owner.parent_block() if isinstance(value.owner, Operation) else None
        )
        order: list[OnnxOp] = []
        # Ops, with what is left of their operands.
        pending: list[tuple[OnnxOp, Iterator[SSAValue]]] = []
        entered: set[Operation] = set()

        def enter(op: Operation | Block) -> None:
            if not isinstance(op, OnnxOp) or op in entered:
                return
            is_known = all(result in self._found for result in op.results)
            if op.parent_block() is block and not is_known:
                entered.add(op)
                pending.append((op, iter(op.operands)))

        enter(value.owner)
        while pending:
            op, operands = pending[-1]
            operand = next(operands, None)
            if operand is None:
                order.append(op)
                pending.pop()
            else:
                enter(operand.owner)
        return order


def once(array: Array) -> Array:
    """Returns the array without repetitions: such dimensions have size 1."""
    return array[tuple(slice(1) if s == 0 else slice(None) for s in array.strides)]


def _results(op: OnnxOp, inputs: Sequence[Array | None]) -> list[Array]:
    """
    Returns what an operator computes from these arrays; nothing if that is unknown or too
    large.
    """
    shapes = [known_shape(result) for result in op.results]
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
    results = [
        np.broadcast_to(np.asarray(array), () if shape is None else shape)
        for array, shape in zip(found, shapes, strict=False)
    ]
    return results if name in _ELEMENTWISE else [_repeating(r) for r in results]


def _repeating(array: Array) -> Array:
    """Returns an array that stores once what is repeated along its dimensions."""
    stored = array
    for dim in range(array.ndim):
        before = (slice(None),) * dim
        first, second = stored[(*before, slice(1))], stored[(*before, slice(1, 2))]
        if second.size and (second == first).all() and (stored == first).all():
            stored = first
    return np.broadcast_to(stored, array.shape)


def _without_repeats(arrays: Sequence[Array], rank: int) -> list[Array]:
    """
    Returns the operands of an elementwise operator, reduced to one element along the
    dimensions along which all of them are repeated.
    """
    aligned = list(arrays)
    for dim in range(-rank, 0):
        reaching = [a for a in aligned if a.ndim >= -dim]
        if all(a.shape[dim] == 1 or a.strides[dim] == 0 for a in reaching):
            cut = (..., slice(1), *[slice(None)] * (-dim - 1))
            aligned = [a[cut] if a.ndim >= -dim else a for a in aligned]
    return aligned
