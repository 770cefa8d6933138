"""Recognises GELU and SiLU activations that are written as elementary ops."""

from __future__ import annotations

from math import pi, sqrt

from xdsl.ir import SSAValue

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import known_shape
from distir.transforms.patterns.match import (
    close,
    factors,
    number,
    plus_constant,
    producer,
    product,
    replace_by,
)


def raise_gelu(op: OnnxOp) -> bool:
    """
    Replaces `0.5 x (1 + erf(x / sqrt 2))`, or its tanh form, by a Gelu if `op` is the
    last op of the expression. Returns whether it was replaced.
    """
    if op.name not in ("onnx.Mul", "onnx.Div"):
        return False
    constant, values = product(op)
    if len(values) != 2 or not close(constant, 0.5, op.results[0]):
        return False
    for x, gate in (values, reversed(values)):
        if known_shape(x) is None or known_shape(x) != known_shape(op.results[0]):
            continue
        shifted = plus_constant(gate)
        if shifted is None or shifted[1] != 1.0:
            continue
        inner = producer(shifted[0], "Erf", "Tanh")
        if inner is None:
            continue
        if inner.name == "onnx.Erf" and _is_scaled(inner.operands[0], x, sqrt(0.5)):
            replace_by(op, "Gelu", [x])
            return True
        if inner.name == "onnx.Tanh" and _is_cubic(inner.operands[0], x):
            replace_by(op, "Gelu", [x], approximate="tanh")
            return True
    return False


def _is_scaled(value: SSAValue, x: SSAValue, scale: float) -> bool:
    constant, values = factors(value)
    return values == [x] and close(constant, scale, x)


def _is_cubic(value: SSAValue, x: SSAValue) -> bool:
    """
    Whether `value` is `sqrt(2/pi) (x + 0.044715 x^3)`, or the same expression with x
    factored out.
    """
    constant, values = factors(value)
    if not close(constant, sqrt(2 / pi), x):
        return False
    if len(values) == 1:
        add = producer(values[0], "Add")
        if add is None:
            return False
        return any(
            add.operands[i] is x and _is_power(add.operands[1 - i], x, 3)
            for i in (0, 1)
        )
    if len(values) == 2 and x in values:
        (other,) = [v for v in values if v is not x] or [x]
        shifted = plus_constant(other)
        return shifted is not None and shifted[1] == 1.0 and _is_power(shifted[0], x, 2)
    return False


def _is_power(value: SSAValue, x: SSAValue, exponent: int) -> bool:
    """Whether `value` is `0.044715 x^exponent`."""
    constant, values = factors(value)
    if not close(constant, 0.044715, x):
        return False
    total = 0
    for factor in values:
        power = producer(factor, "Pow")
        if factor is x:
            total += 1
        elif power is not None and power.operands[0] is x:
            degree = number(power.operands[1])
            if degree is None or degree != int(degree):
                return False
            total += int(degree)
        else:
            return False
    return total == exponent


def raise_silu(op: OnnxOp) -> bool:
    """
    Replaces `x sigmoid(x)` by a Swish if `op` is the last op of the expression. Returns
    whether it was replaced.
    """
    if op.name != "onnx.Mul":
        return False
    for i in (0, 1):
        gate = producer(op.operands[1 - i], "Sigmoid")
        if gate is not None and gate.operands[0] is op.operands[i]:
            replace_by(op, "Swish", [op.operands[i]])
            return True
    return False
