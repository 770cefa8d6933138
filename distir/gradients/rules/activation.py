"""Gradient rules of activation functions."""

from __future__ import annotations

from xdsl.ir import SSAValue

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.train_ops.activation import SwishGradOp
from distir.gradients.rule import GradientBuilder, Gradients, onnx_gradient


@onnx_gradient("SwiGLU")
def swi_glu(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """Needs both inputs: `y = swish(gate) * x`."""
    gate, x = op.operands
    alpha = op.attribute("alpha")
    scaled = build.onnx("Mul", dy, x)
    dgate = build.result(SwishGradOp(scaled, gate, alpha=alpha))
    return [dgate, build.onnx("Mul", dy, build.onnx("Swish", gate, alpha=alpha))]
