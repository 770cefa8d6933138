"""Gradient rules of activation functions that are one kernel."""

from __future__ import annotations

from distir.dialects.onnx import OnnxOp
from distir.dialects.train_ops.activation import GeluGradOp
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule


@gradient_rule("onnx.Gelu")
def gelu(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """Needs the input."""
    (dy,) = gradients
    assert dy is not None
    gradient = GeluGradOp(dy, op.operands[0], op.attribute("approximate"))
    return [build.add(gradient).results[0]]
