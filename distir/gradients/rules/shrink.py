"""Gradient rule of shrinkage."""

from __future__ import annotations

from xdsl.ir import SSAValue

from distir.dialects.onnx import OnnxOp
from distir.dialects.train_ops.shrink import ShrinkGradOp
from distir.gradients.rule import (
    GradientBuilder,
    Gradients,
    onnx_gradient,
)


@onnx_gradient("Shrink")
def shrink(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """Needs the input."""
    gradient = ShrinkGradOp(dy, op.operands[0], lambd=op.attribute("lambd"))
    return [build.result(gradient)]
