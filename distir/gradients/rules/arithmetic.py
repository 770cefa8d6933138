"""
Gradient rules of arithmetic with broadcasting, and of ops that choose between values.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from distir.dialects.constants import direct_constant
from distir.dialects.onnx_ops.op import OnnxOp
from distir.gradients.rule import (
    GradientBuilder,
    Gradients,
    is_differentiable,
    onnx_gradient,
)


def is_wanted(value: SSAValue) -> bool:
    """
    Whether the gradient of an operand is needed: the operand must hold floats and not
    be a constant.
    """
    return is_differentiable(value) and direct_constant(value) is None


@onnx_gradient("Add", "Sum")
def add(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of Add and Sum: every operand gets dy, summed to the operand's shape.
    """
    return [build.sum_to(gradient, v) if is_wanted(v) else None for v in op.operands]


@onnx_gradient("Mean")
def mean_of_all(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """Gradient rule of Mean over n operands: every operand gets `dy / n`."""
    count = build.scalar(len(op.operands), gradient)
    return add(op, build.onnx("Div", gradient, count), build)


@onnx_gradient("Sub")
def subtract(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """Gradient rule of Sub, y = a - b: `dy` for a and `-dy` for b."""
    a, b = op.operands
    return [
        build.sum_to(gradient, a) if is_wanted(a) else None,
        build.onnx("Neg", build.sum_to(gradient, b)) if is_wanted(b) else None,
    ]


@onnx_gradient("Mul")
def multiply(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """Gradient rule of Mul, y = a b: `dy b` for a and `dy a` for b."""

    def part(mine: SSAValue, other: SSAValue) -> SSAValue | None:
        if not is_wanted(mine):
            return None
        return build.sum_to(build.onnx("Mul", gradient, other), mine)

    a, b = op.operands
    return [part(a, b), part(b, a)]


@onnx_gradient("Div")
def divide(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """Gradient rule of Div, y = a / b: `dy / b` for a and `-(dy / b) y` for b."""
    a, b = op.operands
    if not is_wanted(a) and not is_wanted(b):
        return [None]
    quotient = build.onnx("Div", gradient, b)
    db = None
    if is_wanted(b):
        product = build.onnx("Mul", quotient, op.results[0])
        db = build.onnx("Neg", build.sum_to(product, b))
    return [build.sum_to(quotient, a) if is_wanted(a) else None, db]


@onnx_gradient("Pow")
def power(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of Pow, y = x^p: `dy p x^(p - 1)` for x, and `dy y log(x)` for p. The
    gradient of x is zero where p is 0, and the gradient of p is zero where x is 0 and p
    is not negative. For the constant exponents 0 to 3, the gradient of x is computed
    without a power.
    """
    x, exponent = op.operands
    value = direct_constant(exponent)
    dx = dp = None
    if is_wanted(x) and value is not None and value.size == 1:
        dx = _constant_power(x, float(value.item()), gradient, build)
    elif is_wanted(x):
        p, zero = build.cast(exponent, x), build.scalar(0, x)
        lower = build.onnx("Sub", p, build.scalar(1, x))
        slope = build.onnx("Mul", p, build.onnx("Pow", x, lower))
        slope = build.onnx("Where", build.onnx("Equal", p, zero), zero, slope)
        dx = build.sum_to(build.onnx("Mul", gradient, slope), x)
    if is_wanted(exponent):
        zero, p_zero = build.scalar(0, x), build.scalar(0, exponent)
        flat = build.onnx(
            "And",
            build.onnx("Equal", x, zero),
            build.onnx("GreaterOrEqual", exponent, p_zero),
        )
        slope = build.onnx("Mul", op.results[0], build.onnx("Log", x))
        slope = build.onnx("Where", flat, zero, slope)
        product = build.sum_to(build.onnx("Mul", gradient, slope), exponent)
        dp = build.cast(product, exponent)
    return [dx, dp]


def _constant_power(
    x: SSAValue, exponent: float, gradient: SSAValue, build: GradientBuilder
) -> SSAValue | None:
    if exponent == 0:
        return None
    gradient = build.sum_to(gradient, x)
    if exponent == 1:
        return gradient
    if exponent == 2:
        lower = x
    elif exponent == 3:
        lower = build.onnx("Mul", x, x)
    else:
        lower = build.onnx("Pow", x, build.scalar(exponent - 1, x))
    slope = build.onnx("Mul", lower, build.scalar(exponent, x))
    return build.onnx("Mul", gradient, slope)


@onnx_gradient("Mod")
def modulo(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of Mod, the remainder y of a / b: `dy` for a and `-dy (a - y) / b` for
    b. The quotient is a whole number and thus constant.
    """
    a, b = op.operands
    db = None
    if is_wanted(b):
        whole = build.onnx("Div", build.onnx("Sub", a, op.results[0]), b)
        product = build.sum_to(build.onnx("Mul", gradient, whole), b)
        db = build.onnx("Neg", product)
    return [build.sum_to(gradient, a) if is_wanted(a) else None, db]


@onnx_gradient("Max", "Min")
def extreme(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of Max and Min: the operands that equal the result share dy
    evenly.
    """
    if len(op.operands) == 1:
        return [gradient]
    masks = [
        build.cast(build.onnx("Equal", v, op.results[0]), gradient) for v in op.operands
    ]
    share = build.onnx("Div", gradient, build.onnx("Sum", *masks))
    return [
        build.sum_to(build.onnx("Mul", share, mask), v) if is_wanted(v) else None
        for v, mask in zip(op.operands, masks, strict=True)
    ]


@onnx_gradient("Where")
def where(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of Where: the chosen operand gets dy, the other operand gets zero.
    """
    condition, a, b = op.operands
    zero = build.scalar(0, gradient)
    da = db = None
    if is_wanted(a):
        da = build.sum_to(build.onnx("Where", condition, gradient, zero), a)
    if is_wanted(b):
        db = build.sum_to(build.onnx("Where", condition, zero, gradient), b)
    return [None, da, db]


@onnx_gradient("Clip")
def clip(op: OnnxOp, gradient: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of Clip: the operand gets dy where it lies within or on the bounds,
    else zero. Where the operand lies outside, the bound on this side gets dy.
    """
    x, low, high = (op.input(i) for i in range(3))
    assert x is not None
    zero = build.scalar(0, gradient)
    below = None if low is None else build.onnx("Less", x, low)
    above = None if high is None else build.onnx("Greater", x, high)

    def scalar_sum(mask: SSAValue, bound: SSAValue) -> SSAValue:
        return build.sum_to(build.onnx("Where", mask, gradient, zero), bound)

    dx = gradient
    if is_wanted(x):
        for mask in (below, above):
            if mask is not None:
                dx = build.onnx("Where", mask, zero, dx)
    found: list[SSAValue | None] = [dx if is_wanted(x) else None]
    if low is not None:
        assert below is not None
        if high is not None and is_wanted(low):
            # If the lower bound is above the upper one, the upper one wins.
            below = build.onnx("And", below, build.onnx("Less", low, high))
        found.append(scalar_sum(below, low) if is_wanted(low) else None)
    if high is not None:
        assert above is not None
        if low is not None and is_wanted(high):
            crossed = build.onnx("Less", high, low)
            above = build.onnx("Or", above, crossed)
        found.append(scalar_sum(above, high) if is_wanted(high) else None)
    return found
