"""Gradient rule of shrinkage."""

from __future__ import annotations

from distir.dialects.onnx import OnnxOp
from distir.dialects.train_ops.shrink import ShrinkGradOp
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule


@gradient_rule("onnx.Shrink")
def shrink(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """Needs the input."""
    (dy,) = gradients
    assert dy is not None
    gradient = ShrinkGradOp(dy, op.operands[0], lambd=op.attribute("lambd"))
    return [build.add(gradient).results[0]]
