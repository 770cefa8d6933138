"""Conversions of ops that move elements or change shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import i1
from xdsl.ir import SSAValue

from distir.frontends.stablehlo.registry import HloCall, UnsupportedError, converts
from distir.frontends.stablehlo.tensors import LazyTensor, Shape, count


@converts("stablehlo.broadcast_in_dim")
def _broadcast(call: HloCall) -> LazyTensor:
    [operand] = call.operands
    dims, shape = call.integers("broadcast_dimensions"), call.shape()
    return broadcast(call, operand, dims, shape)


def broadcast(
    call: HloCall, operand: LazyTensor, dims: Sequence[int], shape: Shape
) -> LazyTensor:
    """
    Returns a tensor of `shape` in which dimension i of `operand` is dimension
    `dims[i]`. Adds only reshapes and transposes; the elements are repeated by the ops
    that use the tensor.
    """
    if count(operand.base) == 1 and operand.rest is None:
        if operand.array is not None:
            return LazyTensor(shape, operand.element, array=operand.array.reshape(()))
        value = call.build.reshape(call.build.base(operand), ())
        return LazyTensor.of(value, shape)
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    if order != list(range(len(dims))):
        operand = transposed(call, operand, order)
        dims = [dims[i] for i in order]
    sizes = [1] * len(shape)
    for dim, size in zip(dims, operand.aligned, strict=True):
        sizes[dim] = size
    first = next((dim for dim, size in enumerate(sizes) if size != 1), len(shape))
    return reshaped(call, operand, tuple(sizes[first:]), shape)


def reshaped(
    call: HloCall, operand: LazyTensor, base: Shape, shape: Shape
) -> LazyTensor:
    """
    Returns a tensor of shape `shape`, whose stored value or array is that of `operand`
    reshaped to `base`. The shape `base` can be broadcast to `shape`.
    """
    if operand.array is not None:
        return LazyTensor(shape, operand.element, array=operand.array.reshape(base))
    return LazyTensor.of(call.build.reshape(call.build.base(operand), base), shape)


@converts("stablehlo.reshape")
def _reshape(call: HloCall) -> LazyTensor:
    [operand], shape = call.operands, call.shape()
    if shape == operand.shape:
        return operand
    if operand.rest is None:
        if count(operand.base) == 1:
            return broadcast(call, operand, (), shape)
        base = _held(operand, shape)
        if base is not None:
            return reshaped(call, operand, base, shape)
    return LazyTensor.of(call.build.reshape(call.build.whole(operand), shape))


def _held(operand: LazyTensor, shape: Shape) -> Shape | None:
    """
    Returns the shape of the operand's stored value after a reshape to `shape`. Returns
    None if the operand must be materialized, because the reshape changes more than
    dimensions of size 1.
    """
    if operand.is_whole:
        return shape
    old = [
        (size, held)
        for size, held in zip(operand.shape, operand.aligned, strict=True)
        if size != 1
    ]
    if [size for size, _ in old] != [size for size in shape if size != 1]:
        return None
    held = iter([own for _, own in old])
    return tuple(next(held) if size != 1 else 1 for size in shape)


@converts("stablehlo.transpose")
def _transpose(call: HloCall) -> LazyTensor:
    return transposed(call, call.operands[0], call.integers("permutation"))


def transposed(call: HloCall, operand: LazyTensor, order: Sequence[int]) -> LazyTensor:
    """
    Returns a tensor with permuted dimensions: dimension i of the result is dimension
    `order[i]` of `operand`.
    """
    shape = tuple(operand.shape[dim] for dim in order)
    if operand.array is not None:
        array = operand.array.reshape(operand.aligned).transpose(order)
        return LazyTensor.known(array, shape, operand.element)
    if not operand.base:
        return LazyTensor(shape, operand.element, operand.value)
    aligned = operand.aligned
    moved = [dim for dim in order if aligned[dim] != 1]
    if moved == sorted(moved):  # only dimensions of size 1 change their places
        base = tuple(aligned[dim] for dim in order)
        return reshaped(call, operand, base, shape)
    value = call.build.transpose(call.build.with_rank(operand), order)
    return LazyTensor.of(value, shape)


@converts("stablehlo.slice")
def _slice(call: HloCall) -> LazyTensor:
    [operand] = call.operands
    bounds = [
        call.integers(name) for name in ("start_indices", "limit_indices", "strides")
    ]
    return sliced(call, operand, *bounds)


def sliced(
    call: HloCall,
    operand: LazyTensor,
    starts: Sequence[int],
    limits: Sequence[int],
    strides: Sequence[int],
) -> LazyTensor:
    """
    Returns the part of a tensor from `starts` to before `limits`, with steps `strides`.
    Each of the three lists has one number per dimension.
    """
    shape = tuple(
        max(0, -((start - limit) // stride))
        for start, limit, stride in zip(starts, limits, strides, strict=True)
    )
    if shape == operand.shape:
        return operand
    one_row = shape == (1, *operand.shape[1:])
    if one_row and operand.rest is not None:
        return call.build.row(operand, starts[0])
    aligned = operand.aligned
    starts = [0 if own == 1 else n for n, own in zip(starts, aligned, strict=True)]
    limits = [1 if own == 1 else n for n, own in zip(limits, aligned, strict=True)]
    strides = [1 if own == 1 else n for n, own in zip(strides, aligned, strict=True)]
    if operand.array is not None:
        parts = tuple(map(slice, starts, limits, strides))
        array = operand.array.reshape(aligned)[parts]
        return LazyTensor.known(array, shape, operand.element)
    if not operand.base:
        return LazyTensor(shape, operand.element, operand.value)
    value = call.build.with_rank(operand)
    return LazyTensor.of(call.build.slice(value, starts, limits, strides), shape)


@converts("stablehlo.concatenate")
def _concatenate(call: HloCall) -> LazyTensor:
    dim = call.integer("dimension")
    operands = [operand for operand in call.operands if operand.shape[dim]]
    if len(operands) == 1:
        return operands[0]
    arrays = [operand.array for operand in operands]
    if count(call.shape()) <= 64 and all(array is not None for array in arrays):
        whole = [
            np.broadcast_to(array, operand.shape)
            for array, operand in zip(arrays, operands, strict=True)
            if array is not None
        ]
        return LazyTensor.known(
            np.concatenate(whole, dim), call.shape(), call.element()
        )
    values = [call.build.whole(operand) for operand in operands]
    return LazyTensor.of(call.build.concatenated(values, dim))


@converts("stablehlo.reverse")
def _reverse(call: HloCall) -> LazyTensor:
    [operand], dims = call.operands, call.integers("dimensions")
    value = reversed_along(call, call.build.with_rank(operand), dims)
    return LazyTensor.of(value, call.shape())


def reversed_along(call: HloCall, value: SSAValue, dims: Sequence[int]) -> SSAValue:
    """Returns `value` with its elements in reverse order along `dims`."""
    own = LazyTensor.of(value)
    dims = [dim for dim in dims if own.shape[dim] > 1]
    if not dims:
        return value
    bounds = [
        call.build.integers(*[number] * len(dims)) for number in (-1, -(2**31), -1)
    ]
    inputs = [value, *bounds[:2], call.build.integers(*dims), bounds[2]]
    return call.build.op("Slice", inputs, own.shape, own.element)


@converts("stablehlo.pad")
def _pad(call: HloCall) -> LazyTensor:
    operand, filling = call.operands
    low, high, inside = (
        call.integers(name)
        for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    value = call.build.whole(operand)
    for dim, between in enumerate(inside):
        if between:
            value = spread(call, value, filling, dim, between)
    return LazyTensor.of(padded(call, value, filling, low, high))


def spread(
    call: HloCall, value: SSAValue, filling: LazyTensor, dim: int, between: int
) -> SSAValue:
    """
    Returns `value` with `between` copies of `filling` between neighbouring elements
    along `dim`.
    """
    own = LazyTensor.of(value)
    size = own.shape[dim]
    split = (*own.shape[: dim + 1], 1, *own.shape[dim + 1 :])
    value = call.build.reshape(value, split)
    high = [0] * len(split)
    high[dim + 1] = between
    value = padded(call, value, filling, [0] * len(split), high)
    merged = (*own.shape[:dim], size * (between + 1), *own.shape[dim + 1 :])
    value = call.build.reshape(value, merged)
    limits = list(merged)
    limits[dim] -= between
    return call.build.slice(value, [0] * len(merged), limits)


def padded(
    call: HloCall,
    value: SSAValue,
    filling: LazyTensor,
    low: Sequence[int],
    high: Sequence[int],
) -> SSAValue:
    """
    Returns `value` with copies of `filling` before (`low`) and after (`high`) its
    elements along each dimension. Negative numbers remove elements instead.
    """
    build, own = call.build, LazyTensor.of(value)
    starts = [max(0, -n) for n in low]
    limits = [size - max(0, -n) for size, n in zip(own.shape, high, strict=True)]
    value, own = build.slice(value, starts, limits), LazyTensor.of(value)
    own = LazyTensor.of(value)
    pads = [max(0, n) for n in (*low, *high)]
    if not any(pads):
        return value
    rank = len(own.shape)
    shape = [size + pads[dim] + pads[rank + dim] for dim, size in enumerate(own.shape)]
    if own.element == i1:
        raise UnsupportedError("it pads truth values")
    fill = build.reshape(build.base(filling), ())
    return build.op("Pad", [value, build.integers(*pads), fill], shape, own.element)
