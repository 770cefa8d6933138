"""Conversions of convolutions, of their gradients, and of pooling."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import AnyFloat

from distir.frontends.stablehlo import attributes
from distir.frontends.stablehlo.ops.contraction import operand_of
from distir.frontends.stablehlo.ops.reduction import is_neutral
from distir.frontends.stablehlo.ops.shape import padded, reversed_along, spread
from distir.frontends.stablehlo.registry import HloCall, UnsupportedError, converts
from distir.frontends.stablehlo.tensors import LazyTensor

_SIDE = re.compile(r"\[([^\]]*)\]")


@converts("stablehlo.convolution")
def _convolution(call: HloCall) -> LazyTensor:
    """
    Converts a convolution to a Conv of an input [batch, features, ...] and a kernel
    [outputs, inputs, ...]. Gradients are convolutions too: for the gradient of the
    input the left operand is dilated, and for that of the kernel batch and features are
    exchanged. Raises UnsupportedError for groups along the batch.
    """
    build, element = call.build, call.element()
    sides = _SIDE.findall(attributes.text(call.attribute("dimension_numbers")))
    left, right, out = ([s.strip() for s in side.split(",")] for side in sides)
    rank = len(left) - 2
    if call.integer("batch_group_count", 1) != 1:
        raise UnsupportedError("it has groups along the batch")
    places = [str(dim) for dim in range(rank)]
    lhs = build.transpose(operand_of(call, 0), _order(left, ["b", "f", *places]))
    rhs = build.transpose(operand_of(call, 1), _order(right, ["o", "i", *places]))
    zero = LazyTensor.known(np.array(0), (), element)
    for dim, step in enumerate(call.integers("lhs_dilation")):
        if step > 1:
            lhs = spread(call, lhs, zero, dim + 2, step - 1)
    turned = [n + 2 for n, flag in enumerate(call.integers("window_reversal")) if flag]
    rhs = reversed_along(call, rhs, turned)
    pads = call.integers("padding") or [0] * (2 * rank)
    low, high = pads[::2], pads[1::2]
    if min(pads) < 0:  # what is cut off
        edges = [[min(0, n) for n in side] for side in (low, high)]
        lhs = padded(call, lhs, zero, [0, 0, *edges[0]], [0, 0, *edges[1]])
        low, high = ([max(0, n) for n in side] for side in (low, high))
    shape = [call.shape()[dim] for dim in _order(out, ["b", "f", *places])]
    value = build.op(
        "Conv",
        [lhs, rhs],
        shape,
        element,
        strides=call.integers("window_strides") or [1] * rank,
        dilations=call.integers("rhs_dilation") or [1] * rank,
        pads=[*low, *high],
        group=call.integer("feature_group_count", 1),
    )
    names = ["b", "f", *places]
    return LazyTensor.of(build.transpose(value, [names.index(name) for name in out]))


def _order(names: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Returns, for each dimension in `wanted`, its index in `names`."""
    return [names.index(name) for name in wanted]


@converts("stablehlo.reduce_window")
def _reduce_window(call: HloCall) -> Sequence[LazyTensor]:
    """
    Converts cumulative sums, and pooling with windows over all but at least two
    dimensions. Raises UnsupportedError for dilated windows, for sums of integers in
    windows, and for reductions other than sum and maximum.
    """
    window = call.integers("window_dimensions")
    rank = len(window)
    strides = call.integers("window_strides") or [1] * rank
    pads = call.integers("padding") or [0] * (2 * rank)
    body = [call.converter.name_of(op) for op in call.body()]
    holes = [*call.integers("window_dilations"), *call.integers("base_dilations")]
    if len(call.operands) != 2 or len(body) != 1 or any(n != 1 for n in holes):
        raise UnsupportedError("its windows have holes, or reduce several tensors")
    if body[0] not in _POOLING:
        raise UnsupportedError(f"it reduces windows of {window} with {body[0]}")
    if not is_neutral(_POOLING[body[0]], call.operands[1]):
        raise UnsupportedError(
            "its windows start from another number than the neutral one"
        )
    moved = [dim for dim in range(rank) if window[dim] > 1 or strides[dim] > 1]
    if body[0] == "stablehlo.add" and len(moved) == 1:
        sums = _cumulative_sum(call, moved[0], window, pads)
        if sums is not None:
            return [sums]
    still = [dim for dim in range(rank) if dim not in moved]
    if rank < 3 or not 1 <= len(moved) <= rank - 2:
        raise UnsupportedError(f"it reduces windows of {window} with {body[0]}")
    build, element = call.build, call.element()
    if not isinstance(element, AnyFloat):
        raise UnsupportedError(f"it reduces windows of elements of type {element}")
    order = [*still, *moved]
    value = build.transpose(build.whole(call.operands[0]), order)
    sizes = LazyTensor.of(value).shape
    places = sizes[len(still) :]
    merged = (int(np.prod(sizes[: len(still) - 1])), sizes[len(still) - 1], *places)
    value = build.reshape(value, merged)
    out = [call.shape()[dim] for dim in order]
    shape = [*merged[:2], *out[len(still) :]]
    size = [window[dim] for dim in moved]
    around = [pads[2 * dim] for dim in moved] + [pads[2 * dim + 1] for dim in moved]
    settings = {
        "kernel_shape": size,
        "strides": [strides[dim] for dim in moved],
        "pads": around,
    }
    if body[0] == "stablehlo.add":
        value = build.op(
            "AveragePool", [value], shape, element, count_include_pad=1, **settings
        )
        number = build.constant(np.array(np.prod(size)), element)
        value = build.op("Mul", [value, number], shape, element)
    else:
        value = build.op("MaxPool", [value], shape, element, **settings)
    value = build.transpose(
        build.reshape(value, out), [order.index(dim) for dim in range(rank)]
    )
    return [LazyTensor.of(value)]


def _cumulative_sum(
    call: HloCall, dim: int, window: Sequence[int], pads: Sequence[int]
) -> LazyTensor | None:
    """
    Returns the sums from the first element along `dim` to each one, or from each one to
    the last, if the windows are these. Otherwise returns None.
    """
    size = call.operands[0].shape[dim]
    around = [(pads[2 * other], pads[2 * other + 1]) for other in range(len(window))]
    low, high = around.pop(dim)
    is_whole = window[dim] == size and call.shape() == call.operands[0].shape
    if any(pair != (0, 0) for pair in around) or not is_whole:
        return None
    if (low, high) not in ((size - 1, 0), (0, size - 1)):
        return None
    build = call.build
    inputs = [build.whole(call.operands[0]), build.integer(dim)]
    sums = build.op(
        "CumSum", inputs, call.shape(), call.element(), reverse=int(not low)
    )
    return LazyTensor.of(sums)


_POOLING = {"stablehlo.add": "ReduceSum", "stablehlo.maximum": "ReduceMax"}
