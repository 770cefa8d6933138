"""Gradient rules of activation functions that are one kernel."""

from __future__ import annotations

from distir.dialects.onnx import OnnxOp
from distir.dialects.train_ops.activation import GeluGradOp, SwishGradOp
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule


@gradient_rule("onnx.Gelu")
def gelu(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """Needs the input."""
    (dy,) = gradients
    assert dy is not None
    gradient = GeluGradOp(dy, op.operands[0], approximate=op.attribute("approximate"))
    return [build.add(gradient).results[0]]


@gradient_rule("onnx.Swish")
def swish(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """Needs the input."""
    (dy,) = gradients
    assert dy is not None
    gradient = SwishGradOp(dy, op.operands[0], alpha=op.attribute("alpha"))
    return [build.add(gradient).results[0]]


@gradient_rule("onnx.SwiGLU")
def swi_glu(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """Needs both inputs: `y = swish(gate) * x`."""
    (dy,) = gradients
    assert dy is not None
    gate, x = op.operands
    alpha = op.attribute("alpha")
    scaled = build.onnx("Mul", dy, x)
    dgate = build.add(SwishGradOp(scaled, gate, alpha=alpha)).results[0]
    return [dgate, build.onnx("Mul", dy, build.onnx("Swish", gate, alpha=alpha))]
