"""Conversions of convolutions, of their gradients, and of pooling."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import SSAValue

from distir.dialects.train_ops.convolution import MaxPoolGradOp
from distir.frontends.stablehlo import attributes
from distir.frontends.stablehlo.builder import TensorBuilder
from distir.frontends.stablehlo.ops.contraction import operand_of
from distir.frontends.stablehlo.ops.reduction import REDUCTIONS, is_neutral
from distir.frontends.stablehlo.ops.shape import padded, reversed_along, spread
from distir.frontends.stablehlo.registry import HloCall, UnsupportedError, converts
from distir.frontends.stablehlo.tensors import LazyTensor, Shape

_SIDE = re.compile(r"\[([^\]]*)\]")


@converts("stablehlo.convolution")
def _convolution(call: HloCall) -> LazyTensor:
    """
    Converts a convolution to a Conv of an input [batch, features, ...] and a kernel
    [outputs, inputs, ...]. Gradients of convolutions are converted too, because they
    are convolutions: for the gradient of the input the left operand is dilated, and for
    the gradient of the kernel batch and features are exchanged. Groups along the batch
    become groups of features.
    """
    build, element = call.build, call.element()
    sides = _SIDE.findall(attributes.text(call.attribute("dimension_numbers")))
    left, right, out = ([s.strip() for s in side.split(",")] for side in sides)
    rank = len(left) - 2
    places = [str(dim) for dim in range(rank)]
    lhs = build.transpose(operand_of(call, 0), _order(left, ["b", "f", *places]))
    rhs = build.transpose(operand_of(call, 1), _order(right, ["o", "i", *places]))
    groups, parts = (
        call.integer(f"{name}_group_count", 1) for name in ("feature", "batch")
    )
    if parts > 1:
        lhs, groups = _grouped_by_features(call, lhs, parts), groups * parts
    zero = LazyTensor.known(np.array(0), (), element)
    for dim, step in enumerate(call.integers("lhs_dilation")):
        if step > 1:
            lhs = spread(call, lhs, zero, dim + 2, step - 1)
    turned = [n + 2 for n, flag in enumerate(call.integers("window_reversal")) if flag]
    rhs = reversed_along(call, rhs, turned)
    pads = call.integers("padding") or [0] * (2 * rank)
    low, high = pads[::2], pads[1::2]
    if min(pads) < 0:  # the part that is cut off
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
        group=groups,
    )
    names = ["b", "f", *places]
    return LazyTensor.of(build.transpose(value, [names.index(name) for name in out]))


def _grouped_by_features(call: HloCall, value: SSAValue, groups: int) -> SSAValue:
    """
    Returns `value` [groups * batch, features, ...] as [batch, groups * features, ...].
    """
    batch, features, *places = LazyTensor.of(value).shape
    batch //= groups
    value = call.build.reshape(value, (groups, batch, features, *places))
    order = [1, 0, *range(2, len(places) + 3)]
    value = call.build.transpose(value, order)
    return call.build.reshape(value, (batch, groups * features, *places))


def _order(names: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Returns, for each dimension in `wanted`, its index in `names`."""
    return [names.index(name) for name in wanted]


@dataclass(frozen=True)
class PoolingWindows:
    """
    The windows of a pooling over some dimensions of a tensor of shape `sizes`.

    - `order`: the dimensions of the tensor, with the pooled dimensions last;
    - `kernel`, `strides`, `pads`: as in ONNX.
    """

    sizes: Shape
    order: list[int]
    kernel: list[int]
    strides: list[int]
    pads: list[int]

    @staticmethod
    def of(call: HloCall) -> PoolingWindows:
        """
        Returns the windows of an op over its first operand. Raises UnsupportedError for
        dilated windows, for elements that are not floats, and if fewer than two
        dimensions lie outside the windows.
        """
        window, strides, pads = _window_attributes(call)
        rank, element = len(window), call.operands[0].element
        if not isinstance(element, AnyFloat):
            raise UnsupportedError(f"it has windows of elements of type {element}")
        moved = [dim for dim in range(rank) if window[dim] > 1 or strides[dim] > 1]
        still = [dim for dim in range(rank) if dim not in moved]
        if rank < 3 or not 1 <= len(moved) <= rank - 2:
            raise UnsupportedError(f"it has windows of {window}")
        around = [pads[2 * dim] for dim in moved] + [pads[2 * dim + 1] for dim in moved]
        return PoolingWindows(
            call.operands[0].shape,
            [*still, *moved],
            [window[dim] for dim in moved],
            [strides[dim] for dim in moved],
            around,
        )

    @property
    def settings(self) -> dict[str, list[int]]:
        """The windows as attributes of an ONNX op."""
        return {
            "kernel_shape": self.kernel,
            "strides": self.strides,
            "pads": self.pads,
        }

    def merged(self, shape: Sequence[int]) -> list[int]:
        """
        Returns the shape [batch, features, ...] that ONNX uses for a tensor of shape
        `shape`.
        """
        sizes = [shape[dim] for dim in self.order]
        still = len(sizes) - len(self.kernel)
        return [int(np.prod(sizes[: still - 1])), *sizes[still - 1 :]]

    def inside(self, build: TensorBuilder, value: SSAValue) -> SSAValue:
        """
        Returns `value` in the shape [batch, features, ...] that ONNX needs for pooling.
        """
        shape = LazyTensor.of(value).shape
        return build.reshape(build.transpose(value, self.order), self.merged(shape))

    def outside(
        self, build: TensorBuilder, value: SSAValue, shape: Sequence[int]
    ) -> LazyTensor:
        """
        Returns a value of shape [batch, features, ...] as a tensor of shape `shape`.
        """
        value = build.reshape(value, [shape[dim] for dim in self.order])
        back = [self.order.index(dim) for dim in range(len(self.order))]
        return LazyTensor.of(build.transpose(value, back))


def _window_attributes(call: HloCall) -> tuple[list[int], list[int], list[int]]:
    """
    Returns the sizes, strides and pads of the windows of an op. Raises UnsupportedError
    for dilated windows.
    """
    window = call.integers("window_dimensions")
    holes = [*call.integers("window_dilations"), *call.integers("base_dilations")]
    if any(n != 1 for n in holes):
        raise UnsupportedError("its windows have holes")
    strides = call.integers("window_strides") or [1] * len(window)
    return window, strides, call.integers("padding") or [0] * (2 * len(window))


@converts("stablehlo.reduce_window")
def _reduce_window(call: HloCall) -> Sequence[LazyTensor]:
    """
    Converts cumulative sums, products, minima and maxima, and pooling. Raises
    UnsupportedError for a reduction of several tensors, and for any other reduction.
    """
    body = [call.converter.name_of(op) for op in call.body()]
    if len(call.operands) != 2 or len(body) != 1 or body[0] not in REDUCTIONS:
        raise UnsupportedError(f"it reduces windows with {', '.join(body)}")
    operator, combine = REDUCTIONS[body[0]]
    if not is_neutral(operator, call.operands[1]):
        raise UnsupportedError(
            "its windows start from another number than the neutral one"
        )
    if (found := _cumulative(call, combine)) is not None:
        return [found]
    if operator not in ("ReduceSum", "ReduceMax"):
        raise UnsupportedError(f"it reduces windows with {body[0]}")
    windows, build, element = PoolingWindows.of(call), call.build, call.element()
    value = windows.inside(build, build.whole(call.operands[0]))
    shape = windows.merged(call.shape())
    if body[0] == "stablehlo.add":
        value = build.op(
            "AveragePool",
            [value],
            shape,
            element,
            count_include_pad=1,
            **windows.settings,
        )
        number = build.constant(np.array(np.prod(windows.kernel)), element)
        value = build.op("Mul", [value, number], shape, element)
    else:
        value = build.op("MaxPool", [value], shape, element, **windows.settings)
    return [windows.outside(build, value, call.shape())]


@converts("stablehlo.select_and_scatter")
def _select_and_scatter(call: HloCall) -> LazyTensor:
    """
    Converts the gradient of a max pooling. Raises UnsupportedError if the op selects
    elements by a comparison other than the largest, or combines gradients by an
    operation other than a sum.
    """
    chosen, combined = (
        [call.converter.name_of(op) for op in call.body(index)] for index in (0, 1)
    )
    directions = {
        call.converter.word(op, "comparison_direction") for op in call.body(0)
    }
    if chosen != ["stablehlo.compare"] or directions != {"GE"}:
        raise UnsupportedError("it selects elements other than the largest ones")
    start = call.operands[2]
    if combined != ["stablehlo.add"] or not is_neutral("ReduceSum", start):
        raise UnsupportedError("it combines elements otherwise than by a sum from 0")
    windows, build = PoolingWindows.of(call), call.build
    x, dy = (windows.inside(build, build.whole(v)) for v in call.operands[:2])
    op = MaxPoolGradOp(
        dy,
        x,
        kernel_shape=windows.kernel,
        strides=windows.strides,
        dilations=[1] * len(windows.kernel),
        pads=windows.pads,
    )
    return windows.outside(build, build.add(op).results[0], call.shape())


def _cumulative(call: HloCall, operator: str) -> LazyTensor | None:
    """
    Converts a reduction over windows that is cumulative along one dimension, from the
    first element or, in reverse, from the last. `operator` is the ONNX operator that
    combines two elements. Returns None for any other windows.
    """
    window, strides, pads = _window_attributes(call)
    moved = [dim for dim, size in enumerate(window) if size > 1]
    if len(moved) != 1 or any(n != 1 for n in strides):
        return None
    [dim], sizes = moved, call.operands[0].shape
    around = [(pads[2 * other], pads[2 * other + 1]) for other in range(len(window))]
    low, high = around.pop(dim)
    if any(pair != (0, 0) for pair in around) or window[dim] != sizes[dim]:
        return None
    if (low, high) not in ((window[dim] - 1, 0), (0, window[dim] - 1)):
        return None
    build, value = call.build, call.build.whole(call.operands[0])
    if operator == "Add":
        inputs = [value, build.integer(dim)]
        value = build.op(
            "CumSum", inputs, call.shape(), call.element(), reverse=int(not low)
        )
    else:
        value = _doubled(call, value, operator, dim, is_reverse=not low)
    return LazyTensor.of(value)


def _doubled(
    call: HloCall, value: SSAValue, operator: str, dim: int, *, is_reverse: bool
) -> SSAValue:
    """
    Returns the cumulative reduction of `value` along `dim` by `operator`, computed in
    rounds. A round combines every element with the element at a distance that doubles
    from round to round.
    """
    build, shape, element = call.build, call.shape(), call.element()
    size, step = shape[dim], 1

    def part(start: int, end: int) -> SSAValue:
        starts, limits = [0] * len(shape), list(shape)
        starts[dim], limits[dim] = start, end
        return build.slice(value, starts, limits)

    while step < size:
        first, last = part(0, size - step), part(step, size)
        smaller = [*shape[:dim], size - step, *shape[dim + 1 :]]
        both = build.op(operator, [first, last], smaller, element)
        pieces = (
            [both, part(size - step, size)] if is_reverse else [part(0, step), both]
        )
        value, step = build.concatenated(pieces, dim), 2 * step
    return value
