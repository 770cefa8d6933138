"""
Computes arrays that depend on constants alone, such as masks. Elements that repeat
along a dimension are stored and computed once, with a stride of 0 as in NumPy. A mask
for a large batch is thus no larger than a mask for one sequence. Arrays that do not fit
into memory, such as a mask for 32,768 tokens, are computed in blocks of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.ir import Block, Operation, SSAValue

from distir.dialects.constants import draws_random_numbers
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import ELEMENTWISE
from distir.dialects.tensors import known_shape
from distir.interpreters.onnx_evaluator import computed

Array = npt.NDArray[Any]

_MOST_ELEMENTS = 1 << 24
"""
The largest number of array elements that are computed at once, without repetitions.
"""

_MOST_KEPT = 1 << 20
"""
The largest number of array elements in a result that is kept, without repetitions.
"""

_BLOCK_ELEMENTS = 1 << 20
"""The approximate number of array elements in a block of rows."""

_MOST_ELEMENTS_IN_BLOCKS = 1 << 31
"""
The largest number of array elements that are computed in blocks, without repetitions.
"""

_ELEMENTWISE = ELEMENTWISE.names | {"onnx.CastLike", "onnx.Identity"}


class KnownArrays:
    """
    Computes arrays from constants, and remembers intermediate arrays for values that
    are computed later.
    """

    def __init__(self) -> None:
        self._found: dict[SSAValue, Array | None] = {}

    def of(self, value: SSAValue) -> Array | None:
        """
        Returns the array of `value` if ONNX ops compute `value` from constants alone.
        Returns None if `value` depends on anything else or is too large.
        """
        for op in self._before(value, self._found.__contains__):
            inputs = [
                None if v is None else self._found.get(v) for v in op.input_values
            ]
            lacks = any(
                v is not None and i is None
                for v, i in zip(op.input_values, inputs, strict=True)
            )
            shapes = [known_shape(result) for result in op.results]
            is_known = not lacks and not draws_random_numbers(op)
            found = _results(op, inputs, shapes) if is_known else []
            self._found.update(dict.fromkeys(op.results))
            if found:
                self._found.update(zip(op.results, found, strict=True))
        found = self._found.get(value)
        if found is not None and once(found).size > _MOST_KEPT:
            del self._found[value]  # the mask of one layer of many
        return found

    def every_block(self, value: SSAValue, holds: Callable[[int, Array], bool]) -> bool:
        """
        Whether `value` depends on constants alone and `holds` is true for each block of
        its rows, counted along the second last dimension. `holds` takes the index of
        the block's first row and the block. The search ends at the first block for
        which `holds` is false. The array may be too large for `of`; then the ops that
        make it from smaller arrays must compute each row from the same row of their
        operands.
        """
        whole = self.of(value)
        ops = [] if whole is not None else self._ops_on_rows(value)
        shape = known_shape(value)
        if shape is None or (whole is None and not ops):
            return False
        count = shape[-2] if len(shape) > 1 else 1

        def rows(first: int, last: int) -> Array | None:
            if whole is not None:
                return _rows_of(whole, first, last)
            return self._computed_rows(ops, first, last)

        # One row tells which of the other dimensions are repeated.
        row = rows(0, min(count, 1))
        if row is None:
            return False
        width = max(1, prod((*once(row).shape[:-1], *shape[-1:])))
        if width * count > _MOST_ELEMENTS_IN_BLOCKS:
            return False
        step = max(1, _BLOCK_ELEMENTS // width)
        for first in range(0, count, step):
            block = rows(first, min(first + step, count))
            if block is None or not holds(first, block):
                return False
        return True

    def _ops_on_rows(self, value: SSAValue) -> list[OnnxOp]:
        """
        Returns the ops that compute the rows of `value` from known arrays, each op
        after the ops of its operands. Returns an empty list if the ops do not compute
        `value` row by row.
        """
        ops = self._before(value, lambda v: self._found.get(v) is not None)
        count = (known_shape(value) or (1,))[-2:][0]
        made: set[SSAValue] = set()
        for op in ops:
            shape = known_shape(op.results[0])
            if shape is None or len(shape) < 2 or shape[-2] not in (1, count):
                return []
            if draws_random_numbers(op) or not self._is_on_rows(op, len(shape)):
                return []
            if any(v not in made and self._found.get(v) is None for v in op.operands):
                return []
            made.update(op.results)
        return ops

    def _is_on_rows(self, op: OnnxOp, rank: int) -> bool:
        """
        Whether `op` computes each row of its result from the same row of its operands.
        Operands without rows may have any use. `rank` is the number of dimensions of
        the result.
        """
        if op.name != "onnx.Unsqueeze":
            return op.name in _ELEMENTWISE | {"onnx.Expand", "onnx.Trilu"}
        axes = self._found.get(op.operands[1])
        return axes is not None and all(a % rank < rank - 2 for a in axes.tolist())

    def _computed_rows(
        self, ops: Sequence[OnnxOp], first: int, last: int
    ) -> Array | None:
        """
        Returns rows `first` to `last - 1` of the result of the last op in `ops`.
        Returns None if these rows cannot be computed.
        """
        rows: dict[SSAValue, Array] = {}
        for op in ops:
            inputs: list[Array | None] = []
            for v in op.input_values:
                known = None if v is None else self._found.get(v)
                if v is not None and known is None:
                    inputs.append(rows[v])
                elif known is not None and _has_rows(op, len(inputs)):
                    inputs.append(_rows_of(known, first, last))
                else:
                    inputs.append(known)
            shape = known_shape(op.results[0])
            assert shape is not None
            height = last - first if shape[-2] > 1 else shape[-2]
            shape = (*shape[:-2], height, shape[-1])
            if op.name == "onnx.Trilu":
                found = _rows_of_triangle(op, inputs, first, shape)
            else:
                found = _results(op, inputs, [shape])
            if not found:
                return None
            rows[op.results[0]] = found[0]
        return rows[ops[-1].results[0]]

    def _before(
        self, value: SSAValue, is_done: Callable[[SSAValue], bool]
    ) -> list[OnnxOp]:
        """
        Returns the ONNX ops of the same block on which `value` depends, each op after
        the ops of its operands. `is_done` tells whether a value is already known.
        Leaves out ops whose results are all known, and ops that are used only by these
        ops.
        """
        block = (
            value.owner.parent_block() if isinstance(value.owner, Operation) else None
        )
        order: list[OnnxOp] = []
        # Ops, each with an iterator over the operands that are still to be visited.
        pending: list[tuple[OnnxOp, Iterator[SSAValue]]] = []
        entered: set[Operation] = set()

        def enter(op: Operation | Block) -> None:
            if not isinstance(op, OnnxOp) or op in entered:
                return
            if op.parent_block() is block and not all(map(is_done, op.results)):
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
    """
    Returns the array with size 1 along each dimension in which the elements repeat.
    """
    return array[tuple(slice(1) if s == 0 else slice(None) for s in array.strides)]


def _has_rows(op: OnnxOp, position: int) -> bool:
    """
    Whether the operand of `op` at index `position` is an array with rows, and not a
    shape, axes or the number of a diagonal.
    """
    return position == 0 or op.name in _ELEMENTWISE


def _rows_of(array: Array, first: int, last: int) -> Array:
    """
    Returns rows `first` to `last - 1` of an array. Returns the whole array if it has at
    most one row.
    """
    has_rows = array.ndim > 1 and array.shape[-2] > 1
    return array[..., first:last, :] if has_rows else array


def _rows_of_triangle(
    op: OnnxOp, inputs: Sequence[Array | None], first: int, shape: tuple[int, ...]
) -> list[Array]:
    """
    Returns a list with the result of a Trilu on consecutive rows of its operand.
    `inputs` has these rows, which begin with row `first`. `shape` is the shape of the
    result. The list is empty if the rows are unknown or too large.
    """
    matrix, diagonal = [*inputs, None][:2]
    if matrix is None or matrix.size > _MOST_ELEMENTS:
        return []
    above = 0 if diagonal is None else int(diagonal.reshape(()))
    triangle = np.triu if op.attribute("upper") else np.tril
    return [np.broadcast_to(triangle(matrix, above + first), shape)]


def _results(
    op: OnnxOp,
    inputs: Sequence[Array | None],
    shapes: Sequence[tuple[int, ...] | None],
) -> list[Array]:
    """
    Returns the results of an ONNX op whose operands are the arrays `inputs`. `shapes`
    has the shape of each result; an entry is None if the shape is unknown. Returns an
    empty list if the results cannot be computed or are too large.
    """
    name, given = op.name, inputs
    if name == "onnx.Expand" and shapes[0] is not None and inputs[0] is not None:
        return [np.broadcast_to(inputs[0], shapes[0])]
    if name == "onnx.Unsqueeze" and inputs[0] is not None and inputs[1] is not None:
        return [np.expand_dims(inputs[0], tuple(inputs[1].tolist()))]
    if name in _ELEMENTWISE:
        rank = max((a.ndim for a in inputs if a is not None), default=0)
        given = _without_repeats(inputs, rank)
        shapes_given = [a.shape for a in given if a is not None]
        largest = prod(np.broadcast_shapes(*shapes_given))
    else:
        largest = max((prod(shape or (0,)) for shape in shapes), default=0)
    if largest > _MOST_ELEMENTS:
        return []
    found = computed(op, given)
    if isinstance(found, Exception) or len(found) < len(shapes):
        return []
    results = [
        np.broadcast_to(np.asarray(array), () if shape is None else shape)
        for array, shape in zip(found[: len(shapes)], shapes, strict=True)
    ]
    return results if name in _ELEMENTWISE else [_repeating(r) for r in results]


def _repeating(array: Array) -> Array:
    """
    Returns an array with the same elements in which elements that repeat along a
    dimension are stored only once.
    """
    stored = array
    for dim in range(array.ndim):
        before = (slice(None),) * dim
        first, second = stored[(*before, slice(1))], stored[(*before, slice(1, 2))]
        if second.size and (second == first).all() and (stored == first).all():
            stored = first
    return np.broadcast_to(stored, array.shape)


def _without_repeats(arrays: Sequence[Array | None], rank: int) -> list[Array | None]:
    """
    Returns the operands of an elementwise op, with size 1 in each dimension along which
    all operands repeat. An operand that is None is omitted and stays None. `rank` is
    the largest number of dimensions of the operands.
    """
    aligned = list(arrays)
    for dim in range(-rank, 0):
        reaching = [a for a in aligned if a is not None and a.ndim >= -dim]
        if all(a.shape[dim] == 1 or a.strides[dim] == 0 for a in reaching):
            cut = (..., slice(1), *[slice(None)] * (-dim - 1))
            aligned = [
                a[cut] if a is not None and a.ndim >= -dim else a for a in aligned
            ]
    return aligned
