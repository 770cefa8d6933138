"""Gradient rules of reductions and running sums."""

from __future__ import annotations

from math import prod

from xdsl.ir import SSAValue

from distir.dialects.onnx import OnnxOp
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule, shape
from distir.gradients.rules.shape import constant_input
from distir.program import describe


def _axes(op: OnnxOp) -> list[int]:
    """The axes that an op reduces."""
    rank = len(shape(op.operands[0]))
    axes = constant_input(op, 1)
    if axes is None or axes.size == 0:
        return [] if op.attribute("noop_with_empty_axes") else list(range(rank))
    return sorted(int(a) % rank for a in axes.reshape(-1))


def _kept(value: SSAValue, op: OnnxOp, build: GradientBuilder) -> SSAValue:
    """A value of the result's shape with the reduced dimensions as 1."""
    axes = _axes(op)
    sizes = [1 if i in axes else n for i, n in enumerate(shape(op.operands[0]))]
    if shape(value) == tuple(sizes):
        return value
    return build.onnx("Reshape", value, build.integers(sizes))


def _gradient(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> SSAValue:
    (gradient,) = gradients
    assert gradient is not None
    return _kept(gradient, op, build)


def _result(op: OnnxOp, dx: SSAValue) -> Gradients:
    return [dx, *[None] * (len(op.operands) - 1)]


def _repeated(op: OnnxOp, value: SSAValue, build: GradientBuilder) -> Gradients:
    sizes = shape(op.operands[0])
    if shape(value) != sizes:
        value = build.onnx("Expand", value, build.integers(sizes))
    return _result(op, value)


@gradient_rule("onnx.ReduceSum")
def reduce_sum(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """The gradient, repeated."""
    return _repeated(op, _gradient(op, gradients, build), build)


@gradient_rule("onnx.ReduceMean")
def reduce_mean(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """The gradient over the number of elements, repeated."""
    gradient = _gradient(op, gradients, build)
    sizes = shape(op.operands[0])
    count = build.scalar(prod(sizes[i] for i in _axes(op)), gradient)
    return _repeated(op, build.onnx("Div", gradient, count), build)


@gradient_rule("onnx.ReduceMax", "onnx.ReduceMin")
def reduce_extreme(
    op: OnnxOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """The elements that attain the result share its gradient evenly."""
    gradient = _gradient(op, gradients, build)
    x = op.operands[0]
    equal = build.onnx("Equal", x, _kept(op.results[0], op, build))
    mask = build.cast(equal, gradient)
    axes = _axes(op)
    if not axes:
        return _result(op, gradient)
    count = build.onnx("ReduceSum", mask, build.integers(axes), keepdims=1)
    share = build.onnx("Div", gradient, count)
    return _result(op, build.onnx("Mul", mask, share))


@gradient_rule("onnx.ReduceSumSquare")
def reduce_sum_of_squares(
    op: OnnxOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """`2 x dy`"""
    gradient = _gradient(op, gradients, build)
    double = build.onnx("Mul", gradient, build.scalar(2, gradient))
    return _result(op, build.onnx("Mul", op.operands[0], double))


@gradient_rule("onnx.ReduceL1")
def reduce_l1(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """`sign(x) dy`"""
    gradient = _gradient(op, gradients, build)
    sign = build.onnx("Sign", op.operands[0])
    return _result(op, build.onnx("Mul", sign, gradient))


@gradient_rule("onnx.ReduceL2")
def reduce_l2(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """`x dy / y`, zero where y is."""
    gradient = _gradient(op, gradients, build)
    y = _kept(op.results[0], op, build)
    zero = build.scalar(0, y)
    unit = build.onnx("Div", gradient, y)
    unit = build.onnx("Where", build.onnx("Equal", y, zero), zero, unit)
    return _result(op, build.onnx("Mul", op.operands[0], unit))


@gradient_rule("onnx.ReduceLogSum")
def reduce_log_sum(
    op: OnnxOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """`dy / exp(y)`, repeated."""
    gradient = _gradient(op, gradients, build)
    total = build.onnx("Exp", _kept(op.results[0], op, build))
    return _repeated(op, build.onnx("Div", gradient, total), build)


@gradient_rule("onnx.ReduceLogSumExp")
def reduce_log_sum_exp(
    op: OnnxOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """`dy exp(x - y)`"""
    gradient = _gradient(op, gradients, build)
    y = _kept(op.results[0], op, build)
    share = build.onnx("Exp", build.onnx("Sub", op.operands[0], y))
    return _result(op, build.onnx("Mul", share, gradient))


@gradient_rule("onnx.ReduceProd")
def reduce_product(
    op: OnnxOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """
    `dy` times the product of the elements before and of those behind, so that a zero
    divides nothing. Raises DistIRError for axes that are not next to each other.
    """
    gradient = _gradient(op, gradients, build)
    x, axes = op.operands[0], _axes(op)
    if not axes:
        return _result(op, gradient)
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
    return _result(op, build.onnx("Mul", others, gradient))


@gradient_rule("onnx.CumSum")
def running_sum(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """The running sum from the other end."""
    dx = build.onnx(
        "CumSum",
        gradients[0],
        op.operands[1],
        exclusive=op.attribute("exclusive"),
        reverse=1 - op.attribute("reverse"),
    )
    return [dx, None]
