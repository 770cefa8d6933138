"""Gradient rules of determinants."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.train_ops.determinant import SlogdetGradOp, SlogdetOp
from distir.gradients.rule import (
    GradientBuilder,
    Gradients,
    gradient_rule,
    onnx_gradient,
)


@gradient_rule("train.slogdet")
def logarithm(op: Operation, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """That of the logarithm; the sign is constant almost everywhere."""
    assert isinstance(op, SlogdetOp)
    _, gradient = gradients
    if gradient is None:
        return [None]
    return [build.result(SlogdetGradOp(gradient, op.x))]


@onnx_gradient("Det")
def determinant(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """`y dy` times the transposed inverse, and zero for singular matrices, as PyTorch's."""
    x, y = op.operands[0], op.results[0]
    dx = build.result(SlogdetGradOp(build.onnx("Mul", dy, y), x))
    zero = build.scalar(0, y)
    is_singular = build.onnx("Equal", y, zero)
    last = build.integers([-2, -1])
    is_singular = build.onnx("Unsqueeze", is_singular, last)
    return [build.onnx("Where", is_singular, zero, dx)]
