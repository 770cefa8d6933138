"""
Gradient rules of functions of one number: `dx = dy f'(x)`. Where the result gives the
slope it is used and not the operand, so that the operand need not be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

from xdsl.ir import SSAValue

from distir.dialects.onnx import OnnxOp
from distir.gradients.rule import (
    GradientBuilder,
    Gradients,
    gradient_rule,
    is_differentiable,
)
from distir.gradients.rules.arithmetic import is_wanted

Slope = Callable[[OnnxOp, GradientBuilder], SSAValue]


def _slope(*names: str) -> Callable[[Slope], Slope]:
    """Registers the derivative of a function; the gradient is its product with dy."""

    def register(function: Slope) -> Slope:
        def rule(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
            (gradient,) = gradients
            assert gradient is not None
            return [build.onnx("Mul", gradient, function(op, build))]

        gradient_rule(*(f"onnx.{name}" for name in names))(rule)
        return function

    return register


@gradient_rule("onnx.Identity")
def identity(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """The gradient itself."""
    return [gradients[0]]


@gradient_rule("onnx.Dropout")
def dropout(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """The gradient itself: outside of training, dropout does nothing."""
    return [gradients[0], *[None] * (len(op.operands) - 1)]


@gradient_rule("onnx.Cast", "onnx.CastLike")
def cast(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """The gradient in the type of the operand; none from or to integers."""
    (gradient,) = gradients
    x = op.operands[0]
    dx = None
    if gradient is not None and is_differentiable(x):
        dx = build.cast(gradient, x)
    return [dx, *[None] * (len(op.operands) - 1)]


@gradient_rule("onnx.Neg")
def negate(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """`-dy`"""
    return [build.onnx("Neg", gradients[0])]


@_slope("Abs")
def absolute(op: OnnxOp, build: GradientBuilder) -> SSAValue:
    """`sign(x)`"""
    return build.onnx("Sign", op.operands[0])


@gradient_rule("onnx.Sqrt")
def square_root(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """`dy / 2y`"""
    y = op.results[0]
    return [build.onnx("Div", gradients[0], build.onnx("Mul", y, build.scalar(2, y)))]


@_slope("Exp")
def exponential(op: OnnxOp, build: GradientBuilder) -> SSAValue:
    """`y`"""
    return op.results[0]


@gradient_rule("onnx.Log")
def logarithm(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """`dy / x`"""
    return [build.onnx("Div", gradients[0], op.operands[0])]


@gradient_rule("onnx.Reciprocal")
def reciprocal(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """`-dy y^2`"""
    y = op.results[0]
    square = build.onnx("Mul", y, y)
    return [build.onnx("Neg", build.onnx("Mul", gradients[0], square))]


@_slope("Erf")
def error_function(op: OnnxOp, build: GradientBuilder) -> SSAValue:
    """`2 / sqrt(pi) exp(-x^2)`"""
    x = op.operands[0]
    bell = build.onnx("Exp", build.onnx("Neg", build.onnx("Mul", x, x)))
    return build.onnx("Mul", bell, build.scalar(2 / sqrt(pi), x))


def _one_minus_square(value: SSAValue, build: GradientBuilder) -> SSAValue:
    square = build.onnx("Mul", value, value)
    return build.onnx("Sub", build.scalar(1, value), square)


@_slope("Tanh")
def tanh(op: OnnxOp, build: GradientBuilder) -> SSAValue:
    """`1 - y^2`"""
    return _one_minus_square(op.results[0], build)


@_slope("Sigmoid")
def sigmoid(op: OnnxOp, build: GradientBuilder) -> SSAValue:
    """`y (1 - y)`"""
    y = op.results[0]
    return build.onnx("Mul", y, build.onnx("Sub", build.scalar(1, y), y))


@_slope("Softplus")
def softplus(op: OnnxOp, build: GradientBuilder) -> SSAValue:
    """`sigmoid(x)`"""
    return build.onnx("Sigmoid", op.operands[0])


@_slope("Softsign")
def softsign(op: OnnxOp, build: GradientBuilder) -> SSAValue:
    """`(1 - |y|)^2`"""
    y = op.results[0]
    left = build.onnx("Sub", build.scalar(1, y), build.onnx("Abs", y))
    return build.onnx("Mul", left, left)


@_slope("Mish")
def mish(op: OnnxOp, build: GradientBuilder) -> SSAValue:
    """`t + x sigmoid(x) (1 - t^2)` for `t = tanh(softplus(x))`"""
    x = op.operands[0]
    t = build.onnx("Tanh", build.onnx("Softplus", x))
    swish = build.onnx("Mul", x, build.onnx("Sigmoid", x))
    return build.onnx("Add", t, build.onnx("Mul", swish, _one_minus_square(t, build)))


@_slope("Sin")
def sine(op: OnnxOp, build: GradientBuilder) -> SSAValue:
    """`cos(x)`"""
    return build.onnx("Cos", op.operands[0])


@_slope("Cos")
def cosine(op: OnnxOp, build: GradientBuilder) -> SSAValue:
    """`-sin(x)`"""
    return build.onnx("Neg", build.onnx("Sin", op.operands[0]))


@_slope("Tan")
def tangent(op: OnnxOp, build: GradientBuilder) -> SSAValue:
    """`1 + y^2`"""
    y = op.results[0]
    return build.onnx("Add", build.scalar(1, y), build.onnx("Mul", y, y))


@_slope("Sinh")
def hyperbolic_sine(op: OnnxOp, build: GradientBuilder) -> SSAValue:
    """`cosh(x)`"""
    return build.onnx("Cosh", op.operands[0])


@_slope("Cosh")
def hyperbolic_cosine(op: OnnxOp, build: GradientBuilder) -> SSAValue:
    """`sinh(x)`"""
    return build.onnx("Sinh", op.operands[0])


@gradient_rule("onnx.Atan")
def arc_tangent(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """`dy / (1 + x^2)`"""
    x = op.operands[0]
    square = build.onnx("Mul", x, x)
    slope = build.onnx("Add", build.scalar(1, x), square)
    return [build.onnx("Div", gradients[0], slope)]


@gradient_rule("onnx.Asin", "onnx.Acos", "onnx.Asinh", "onnx.Acosh", "onnx.Atanh")
def inverse_function(
    op: OnnxOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """
    `dy / r`, where r is `1 - x^2` for Atanh and otherwise a square root: of `1 - x^2`
    for Asin and, negated, for Acos, of `x^2 + 1` for Asinh, of `x^2 - 1` for Acosh.
    """
    x, name = op.operands[0], op.SCHEMA.name
    one, square = build.scalar(1, x), build.onnx("Mul", x, x)
    if name == "Asinh":
        slope = build.onnx("Add", square, one)
    elif name == "Acosh":
        slope = build.onnx("Sub", square, one)
    else:
        slope = build.onnx("Sub", one, square)
    if name != "Atanh":
        slope = build.onnx("Sqrt", slope)
    if name == "Acos":
        slope = build.onnx("Neg", slope)
    return [build.onnx("Div", gradients[0], slope)]


# Where a function has two branches, the gradient is chosen and not multiplied, so that
# an infinite slope of the branch not taken does no harm.


def _is_positive(value: SSAValue, build: GradientBuilder) -> SSAValue:
    return build.onnx("Greater", value, build.scalar(0, value))


@gradient_rule("onnx.Relu")
def relu(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """`dy` where y is positive, else zero."""
    y = op.results[0]
    zero = build.scalar(0, y)
    return [build.onnx("Where", _is_positive(y, build), gradients[0], zero)]


@gradient_rule("onnx.LeakyRelu")
def leaky_relu(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """`dy` where x is positive, else `alpha dy`."""
    x, gradient = op.operands[0], gradients[0]
    small = build.onnx("Mul", gradient, build.scalar(op.attribute("alpha"), x))
    return [build.onnx("Where", _is_positive(x, build), gradient, small)]


@gradient_rule("onnx.PRelu")
def prelu(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """`dy` where x is positive, else `slope dy`; the slope gets `x dy` there."""
    (gradient,) = gradients
    assert gradient is not None
    x, slope = op.operands
    positive = _is_positive(x, build)
    small = build.onnx("Mul", gradient, slope)
    dx = build.onnx("Where", positive, gradient, small) if is_wanted(x) else None
    if not is_wanted(slope):
        return [dx, None]
    product = build.onnx("Mul", gradient, x)
    chosen = build.onnx("Where", positive, build.scalar(0, x), product)
    return [dx, build.sum_to(chosen, slope)]


@gradient_rule("onnx.Elu")
def elu(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """`dy` where y is positive, else `dy (y + alpha)`, for a positive alpha."""
    return [_exponential_branch(op, gradients, build, op.attribute("alpha"))]


@gradient_rule("onnx.Celu")
def celu(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """`dy` where x is positive, else `dy exp(x / alpha) = dy (y + alpha) / alpha`."""
    alpha = op.attribute("alpha")
    return [_exponential_branch(op, gradients, build, alpha, divisor=alpha)]


@gradient_rule("onnx.Selu")
def selu(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """`gamma dy` where x is positive, else `dy (y + gamma alpha)`."""
    gamma = op.attribute("gamma")
    offset = gamma * op.attribute("alpha")
    return [_exponential_branch(op, gradients, build, offset, factor=gamma)]


def _exponential_branch(
    op: OnnxOp,
    gradients: Gradients,
    build: GradientBuilder,
    offset: float,
    *,
    factor: float = 1,
    divisor: float = 1,
) -> SSAValue:
    """`factor dy` where x is positive, else `dy (y + offset) / divisor`."""
    x, y, gradient = op.operands[0], op.results[0], gradients[0]
    below = build.onnx("Mul", gradient, build.onnx("Add", y, build.scalar(offset, y)))
    if divisor != 1:
        below = build.onnx("Div", below, build.scalar(divisor, y))
    above = gradient
    if factor != 1:
        above = build.onnx("Mul", gradient, build.scalar(factor, y))
    return build.onnx("Where", _is_positive(x, build), above, below)


@gradient_rule("onnx.HardSigmoid")
def hard_sigmoid(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """`alpha dy` where y is between 0 and 1, else zero."""
    y = op.results[0]
    zero = build.scalar(0, y)
    inside = build.onnx(
        "And", _is_positive(y, build), build.onnx("Less", y, build.scalar(1, y))
    )
    sloped = build.onnx("Mul", gradients[0], build.scalar(op.attribute("alpha"), y))
    return [build.onnx("Where", inside, sloped, zero)]


@gradient_rule("onnx.HardSwish")
def hard_swish(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """`dy` above 3, zero below -3, `dy (x / 3 + 1 / 2)` between."""
    x, gradient = op.operands[0], gradients[0]
    third = build.onnx("Div", x, build.scalar(3, x))
    slope = build.onnx("Add", third, build.scalar(0.5, x))
    middle = build.onnx("Mul", gradient, slope)
    low = build.onnx("LessOrEqual", x, build.scalar(-3, x))
    high = build.onnx("GreaterOrEqual", x, build.scalar(3, x))
    upper = build.onnx("Where", high, gradient, middle)
    return [build.onnx("Where", low, build.scalar(0, x), upper)]


@gradient_rule("onnx.ThresholdedRelu")
def thresholded_relu(
    op: OnnxOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """`dy` where x is above alpha, else zero."""
    x = op.operands[0]
    above = build.onnx("Greater", x, build.scalar(op.attribute("alpha"), x))
    return [build.onnx("Where", above, gradients[0], build.scalar(0, x))]
