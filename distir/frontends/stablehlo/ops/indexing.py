"""Conversions of slices and updates at computed positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import i1, i64
from xdsl.ir import SSAValue

from distir.frontends.stablehlo.ops.shape import sliced
from distir.frontends.stablehlo.registry import HloCall, converts
from distir.frontends.stablehlo.tensors import LazyTensor


@converts("stablehlo.dynamic_slice")
def _dynamic_slice(call: HloCall) -> LazyTensor:
    operand, *starts = call.operands
    sizes = call.integers("slice_sizes")
    known = known_starts(starts, operand.shape, sizes)
    bounds = [n or 0 for n in known]
    limits = [
        start + size if n is not None else whole
        for n, start, size, whole in zip(
            known, bounds, sizes, operand.shape, strict=True
        )
    ]
    found = sliced(call, operand, bounds, limits, [1] * len(sizes))
    for dim, number in enumerate(known):
        if number is None:
            places = positions(call, starts[dim], sizes[dim], operand.shape[dim])
            value = call.build.whole(found)
            shape = list(found.shape)
            shape[dim] = sizes[dim]
            value = call.build.op(
                "Gather", [value, places], shape, operand.element, axis=dim
            )
            found = LazyTensor.of(value)
    return found


def known_starts(
    starts: Sequence[LazyTensor], shape: Sequence[int], sizes: Sequence[int]
) -> list[int | None]:
    """
    Returns the first position of a slice in each dimension; an entry is None if the
    position is unknown. Positions are clamped so that the slice lies inside the tensor,
    as StableHLO defines. A slice of a whole dimension begins at 0.
    """
    found: list[int | None] = []
    for start, whole, size in zip(starts, shape, sizes, strict=True):
        number = 0 if size == whole else start.number()
        found.append(None if number is None else max(0, min(number, whole - size)))
    return found


def positions(call: HloCall, start: LazyTensor, size: int, whole: int) -> SSAValue:
    """
    Returns the `size` positions that begin with `start`, as a vector [size]. `start` is
    clamped so that all positions lie inside a dimension of size `whole`.
    """
    build = call.build
    first = clamped(call, build.cast(build.base(start), i64), whole - size)
    if size == 1:
        return build.reshape(first, (1,))
    steps = build.integers(*range(size)) if size <= 64 else _count(call, size)
    return build.op("Add", [steps, first], (size,), i64)


def _count(call: HloCall, size: int) -> SSAValue:
    ends = [call.build.integer(value) for value in (0, size, 1)]
    return call.build.op("Range", ends, (size,), i64)


def clamped(call: HloCall, value: SSAValue, highest: int) -> SSAValue:
    """Returns the integers of `value` clamped to the range from 0 to `highest`."""
    own = LazyTensor.of(value)
    bounds = [
        call.build.constant(np.array(bound), own.element) for bound in (0, highest)
    ]
    value = call.build.op("Max", [value, bounds[0]], own.shape, own.element)
    return call.build.op("Min", [value, bounds[1]], own.shape, own.element)


@converts("stablehlo.dynamic_update_slice")
def _dynamic_update_slice(call: HloCall) -> LazyTensor:
    operand, update, *starts = call.operands
    known = known_starts(starts, operand.shape, update.shape)
    if update.shape == operand.shape:
        return update
    first, *others = known
    if first is not None and not any(others) and None not in others:
        row = _row_replaced(operand, update, first)
        if row is not None:
            return row
    build = call.build
    value, part = build.whole(operand), build.whole(update)
    cut = [dim for dim, size in enumerate(update.shape) if size != operand.shape[dim]]
    if len(cut) == 1 and known[cut[0]] is not None:
        return LazyTensor.of(_replaced(call, value, part, cut[0], known[cut[0]] or 0))
    return _replaced_where(call, operand, update, starts)


def _row_replaced(
    operand: LazyTensor, update: LazyTensor, index: int
) -> LazyTensor | None:
    """
    Returns `operand` with row `index` replaced by `update`, without materializing the
    tensor. Returns None if `update` is not exactly one row.
    """
    if update.shape != (1, *operand.shape[1:]):
        return None
    rows = list(operand.rows) or [None] * operand.shape[0]
    rows[index] = update
    rest = operand if operand.rest is None else operand.rest
    return LazyTensor(operand.shape, operand.element, rows=tuple(rows), rest=rest)


def _replaced(
    call: HloCall, value: SSAValue, part: SSAValue, dim: int, start: int
) -> SSAValue:
    """
    Returns `value` in which `part` replaces the elements along dimension `dim` that
    begin at the position `start`.
    """
    build, own = call.build, LazyTensor.of(value)
    end = start + LazyTensor.of(part).shape[dim]
    pieces: list[SSAValue] = []
    for low, high in ((0, start), (end, own.shape[dim])):
        starts, limits = [0] * len(own.shape), list(own.shape)
        starts[dim], limits[dim] = low, high
        if high > low:
            pieces.append(build.slice(value, starts, limits))
    pieces.insert(1 if start else 0, part)
    return build.concatenated(pieces, dim)


def _replaced_where(
    call: HloCall, operand: LazyTensor, update: LazyTensor, starts: Sequence[LazyTensor]
) -> LazyTensor:
    """
    Returns `operand` in which `update` replaces the part that begins at the positions
    `starts`, if a position is unknown before the program runs. Along each dimension, a
    gather shifts the elements of `update` to their positions in the result, and a
    selection keeps `operand` elsewhere.
    """
    build, value = call.build, call.build.whole(update)
    inside: SSAValue | None = None
    rank = len(operand.shape)
    for dim, (whole, size) in enumerate(zip(operand.shape, update.shape, strict=True)):
        if whole == size:
            continue
        place = (whole, *[1] * (rank - dim - 1))
        start = build.cast(build.base(starts[dim]), i64)
        start = clamped(call, start, whole - size)
        offset = build.op("Sub", [_count(call, whole), start], (whole,), i64)
        shape = list(LazyTensor.of(value).shape)
        shape[dim] = whole
        own = clamped(call, offset, size - 1)
        value = build.op("Gather", [value, own], shape, update.element, axis=dim)
        same = build.op("Equal", [offset, own], (whole,), i1)
        same = build.reshape(same, place)
        if inside is None:
            inside = same
        else:
            both = np.broadcast_shapes(LazyTensor.of(inside).shape, place)
            inside = build.op("And", [inside, same], both, i1)
    if inside is None:
        return update
    inputs = [inside, value, build.whole(operand)]
    return LazyTensor.of(build.op("Where", inputs, operand.shape, operand.element))
