"""Gradient rules of reductions, and of cumulative sums and products."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from xdsl.ir import SSAValue

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.train_ops.cumulative import CumProdGradOp
from distir.errors import DistIRError
from distir.gradients.rule import (
    GradientBuilder,
    Gradients,
    onnx_gradient,
    shape,
)
from distir.gradients.rules.shape import constant_input
from distir.program import describe


def _axes(op: OnnxOp) -> list[int]:
    """Returns the axes that a reduction reduces, sorted and counted from 0."""
    rank = len(shape(op.operands[0]))
    axes = constant_input(op, 1)
    if axes is None or axes.size == 0:
        return [] if op.attribute("noop_with_empty_axes") else list(range(rank))
    return sorted(int(a) % rank for a in axes.reshape(-1))


def _kept(value: SSAValue, op: OnnxOp, build: GradientBuilder) -> SSAValue:
    """
    Returns `value`, which has the result's shape, reshaped so that each reduced
    dimension is there with size 1.
    """
    axes = _axes(op)
    sizes = [1 if i in axes else n for i, n in enumerate(shape(op.operands[0]))]
    if shape(value) == tuple(sizes):
        return value
    return build.onnx("Reshape", value, build.integers(sizes))


Reduced = Callable[[OnnxOp, SSAValue, GradientBuilder], SSAValue]


def _reduction(*names: str) -> Callable[[Reduced], Reduced]:
    """
    Returns a decorator that registers the gradient rule of reductions. The decorated
    function takes the gradient of the result, with reduced dimensions of size 1, and
    returns the gradient of the operand. A returned gradient that is smaller than the
    operand is repeated along the reduced dimensions.
    """

    def register(function: Reduced) -> Reduced:
        @onnx_gradient(*names)
        def rule(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:  # pyright: ignore[reportUnusedFunction]
            dx, sizes = function(op, _kept(dy, op, build), build), shape(op.operands[0])
            if shape(dx) != sizes:
                dx = build.onnx("Expand", dx, build.integers(sizes))
            return [dx]

        return function

    return register


@_reduction("ReduceSum")
def reduce_sum(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> SSAValue:
    """Gradient rule of ReduceSum: dy, repeated along the reduced dimensions."""
    return dy


@_reduction("ReduceMean")
def reduce_mean(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> SSAValue:
    """
    Gradient rule of ReduceMean: dy divided by the number of reduced elements, repeated.
    """
    sizes = shape(op.operands[0])
    count = build.scalar(prod(sizes[i] for i in _axes(op)), dy)
    return build.onnx("Div", dy, count)


@_reduction("ReduceMax", "ReduceMin")
def reduce_extreme(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> SSAValue:
    """
    Gradient rule of ReduceMax and ReduceMin: the elements that equal the result share
    dy evenly.
    """
    x = op.operands[0]
    equal = build.onnx("Equal", x, _kept(op.results[0], op, build))
    mask = build.cast(equal, dy)
    axes = _axes(op)
    if not axes:
        return dy
    count = build.onnx("ReduceSum", mask, build.integers(axes), keepdims=1)
    return build.onnx("Mul", mask, build.onnx("Div", dy, count))


@_reduction("ReduceSumSquare")
def reduce_sum_of_squares(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> SSAValue:
    """Gradient rule of ReduceSumSquare: `2 x dy`."""
    return build.onnx("Mul", op.operands[0], build.onnx("Mul", dy, build.scalar(2, dy)))


@_reduction("ReduceL1")
def reduce_l1(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> SSAValue:
    """Gradient rule of ReduceL1: `sign(x) dy`."""
    return build.onnx("Mul", build.onnx("Sign", op.operands[0]), dy)


@_reduction("ReduceL2")
def reduce_l2(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> SSAValue:
    """Gradient rule of ReduceL2: `x dy / y`, and zero where y is zero."""
    y = _kept(op.results[0], op, build)
    zero = build.scalar(0, y)
    unit = build.onnx("Div", dy, y)
    unit = build.onnx("Where", build.onnx("Equal", y, zero), zero, unit)
    return build.onnx("Mul", op.operands[0], unit)


@_reduction("ReduceLogSum")
def reduce_log_sum(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> SSAValue:
    """Gradient rule of ReduceLogSum: `dy / exp(y)`, repeated."""
    return build.onnx("Div", dy, build.onnx("Exp", _kept(op.results[0], op, build)))


@_reduction("ReduceLogSumExp")
def reduce_log_sum_exp(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> SSAValue:
    """Gradient rule of ReduceLogSumExp: `dy exp(x - y)`."""
    y = _kept(op.results[0], op, build)
    share = build.onnx("Exp", build.onnx("Sub", op.operands[0], y))
    return build.onnx("Mul", share, dy)


@_reduction("ReduceProd")
def reduce_product(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> SSAValue:
    """
    Gradient rule of ReduceProd: dy times the product of the elements before and the
    product of the elements after. No division by zero can occur. Raises DistIRError if
    the axes are not neighbours.
    """
    x, axes = op.operands[0], _axes(op)
    if not axes:
        return dy
    if axes[-1] - axes[0] != len(axes) - 1:
        raise DistIRError(
            f"{describe(op)} has a gradient only for neighbouring axes, not {axes}; "
            "reduce one axis after the other"
        )
    sizes = shape(x)
    row = prod(sizes[i] for i in axes)
    flat = x
    if len(axes) > 1:
        joined = [*sizes[: axes[0]], row, *sizes[axes[-1] + 1 :]]
        flat = build.onnx("Reshape", x, build.integers(joined))
    axis = build.integers([axes[0]])
    axis = build.onnx("Reshape", axis, build.integers([]))
    before = build.onnx("CumProd", flat, axis, exclusive=1)
    behind = build.onnx("CumProd", flat, axis, exclusive=1, reverse=1)
    others = build.reshape_like(build.onnx("Mul", before, behind), x)
    return build.onnx("Mul", others, dy)


@onnx_gradient("CumSum")
def running_sum(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """Gradient rule of CumSum: the cumulative sum of dy in the opposite direction."""
    dx = build.onnx(
        "CumSum",
        dy,
        op.operands[1],
        exclusive=op.attribute("exclusive"),
        reverse=1 - op.attribute("reverse"),
    )
    return [dx]


@onnx_gradient("CumProd")
def running_product(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of CumProd: one kernel, which is correct where factors are zero.
    Raises DistIRError if the axis is not a constant.
    """
    axis = constant_input(op, 1)
    assert axis is not None
    made = CumProdGradOp(
        *(dy, op.operands[0]),
        axis=int(axis.reshape(-1)[0]),
        exclusive=bool(op.attribute("exclusive")),
        reverse=bool(op.attribute("reverse")),
    )
    return [build.result(made)]
