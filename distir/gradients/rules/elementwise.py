"""
Gradient rules of functions of one number: `dx = dy f'(x)`.

If the slope can be computed from the result, it is, so that the operand need not be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

from xdsl.ir import SSAValue

from distir.dialects.onnx_ops.op import OnnxOp
from distir.gradients.rule import (
    GradientBuilder,
    Gradients,
    gradient_rule,
    is_differentiable,
    onnx_gradient,
)
from distir.gradients.rules.arithmetic import is_wanted
from distir.gradients.term import Term


@onnx_gradient("Identity", "Dropout")
def identity(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """The gradient itself. Dropout outside of training is the identity too."""
    return [dy]


@gradient_rule("onnx.Cast", "onnx.CastLike")
def cast(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """The gradient in the type of the operand; none from or to integers."""
    (gradient,) = gradients
    x = op.operands[0]
    dx = None
    if gradient is not None and is_differentiable(x):
        dx = build.cast(gradient, x)
    return [dx, *[None] * (len(op.operands) - 1)]


def _mish_slope(x: Term, y: Term) -> Term:
    """`t + x sigmoid(x) (1 - t^2)` for `t = tanh(softplus(x))`"""
    t = x.onnx("Softplus").onnx("Tanh")
    return t + x * x.onnx("Sigmoid") * (1 - t * t)


def _softsign_slope(x: Term, y: Term) -> Term:
    """`(1 - |y|)^2`"""
    left = 1 - y.onnx("Abs")
    return left * left


Formula = Callable[[Term, Term], Term]
"""A formula of the operand x and the result y."""

SLOPES: dict[str, Formula] = {
    "Abs": lambda x, y: x.onnx("Sign"),
    "Exp": lambda x, y: y,
    "Erf": lambda x, y: (-(x * x)).onnx("Exp") * (2 / sqrt(pi)),
    "Tanh": lambda x, y: 1 - y * y,
    "Sigmoid": lambda x, y: y * (1 - y),
    "Softplus": lambda x, y: x.onnx("Sigmoid"),
    "Softsign": _softsign_slope,
    "Mish": _mish_slope,
    "Sin": lambda x, y: x.onnx("Cos"),
    "Cos": lambda x, y: -x.onnx("Sin"),
    "Tan": lambda x, y: 1 + y * y,
    "Sinh": lambda x, y: x.onnx("Cosh"),
    "Cosh": lambda x, y: x.onnx("Sinh"),
}
"""The factor of `dy`, by operator."""

DIVISORS: dict[str, Formula] = {
    "Sqrt": lambda x, y: y * 2,
    "Log": lambda x, y: x,
    "Atan": lambda x, y: 1 + x * x,
    "Atanh": lambda x, y: 1 - x * x,
    "Asin": lambda x, y: (1 - x * x).onnx("Sqrt"),
    "Acos": lambda x, y: -(1 - x * x).onnx("Sqrt"),
    "Asinh": lambda x, y: (x * x + 1).onnx("Sqrt"),
    "Acosh": lambda x, y: (x * x - 1).onnx("Sqrt"),
}
"""The divisor of `dy`, by operator."""

# Where a function has two branches, the gradient is chosen and not multiplied, so that
# an infinite slope of the branch not taken does no harm.


def _exponential_branch(
    x: Term, y: Term, dy: Term, offset: float, *, factor: float = 1, divisor: float = 1
) -> Term:
    """Returns `factor dy` where x is positive, else `dy (y + offset) / divisor`."""
    below = dy * (y + offset)
    below = below if divisor == 1 else below / divisor
    above = dy if factor == 1 else dy * factor
    return above.where(x > 0, below)


def _elu(op: OnnxOp, x: Term, y: Term, dy: Term) -> Term:
    """`dy` where y is positive, else `dy (y + alpha)`, for a positive alpha."""
    return _exponential_branch(x, y, dy, op.attribute("alpha"))


def _celu(op: OnnxOp, x: Term, y: Term, dy: Term) -> Term:
    """`dy` where x is positive, else `dy exp(x / alpha) = dy (y + alpha) / alpha`."""
    alpha = op.attribute("alpha")
    return _exponential_branch(x, y, dy, alpha, divisor=alpha)


def _selu(op: OnnxOp, x: Term, y: Term, dy: Term) -> Term:
    """`gamma dy` where x is positive, else `dy (y + gamma alpha)`."""
    gamma = op.attribute("gamma")
    return _exponential_branch(x, y, dy, gamma * op.attribute("alpha"), factor=gamma)


def _hard_sigmoid(op: OnnxOp, x: Term, y: Term, dy: Term) -> Term:
    """`alpha dy` where y is between 0 and 1, else zero."""
    inside = (y > 0).onnx("And", y < 1)
    return (dy * op.attribute("alpha")).where(inside, 0)


def _hard_swish(op: OnnxOp, x: Term, y: Term, dy: Term) -> Term:
    """`dy` above 3, zero below -3, `dy (x / 3 + 1 / 2)` between."""
    middle = dy * (x / 3 + 0.5)
    upper = dy.where(x.onnx("GreaterOrEqual", 3), middle)
    return x.constant(0).where(x.onnx("LessOrEqual", -3), upper)


Rule = Callable[[OnnxOp, Term, Term, Term], Term]
"""The gradient, given the op, its operand x, its result y and dy."""

RULES: dict[str, Rule] = {
    "Neg": lambda op, x, y, dy: -dy,
    "Reciprocal": lambda op, x, y, dy: -(dy * (y * y)),
    "LeakyRelu": lambda op, x, y, dy: dy.where(x > 0, dy * op.attribute("alpha")),
    "ThresholdedRelu": lambda op, x, y, dy: dy.where(x > op.attribute("alpha"), 0),
    "Elu": _elu,
    "Celu": _celu,
    "Selu": _selu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    **{
        name: lambda op, x, y, dy, slope=slope: dy * slope(x, y)
        for name, slope in SLOPES.items()
    },
    **{
        name: lambda op, x, y, dy, divisor=divisor: dy / divisor(x, y)
        for name, divisor in DIVISORS.items()
    },
}


def _register(name: str, rule: Rule) -> None:
    @onnx_gradient(name)
    def gradient(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
        x, y, term = (Term(v, build) for v in (op.operands[0], op.results[0], dy))
        return [rule(op, x, y, term).value]


for _name, _rule in RULES.items():
    _register(_name, _rule)


@onnx_gradient("PRelu")
def prelu(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """
    `dy` where x is positive, else `slope dy`; the slope gets `x dy` in the latter case.
    """
    dy, x, slope = (Term(v, build) for v in (gradient, *op.operands))
    positive = x > 0
    small = dy * slope
    dx = dy.where(positive, small).value if is_wanted(x.value) else None
    if not is_wanted(slope.value):
        return [dx]
    chosen = x.constant(0).where(positive, dy * x)
    return [dx, build.sum_to(chosen.value, slope.value)]
