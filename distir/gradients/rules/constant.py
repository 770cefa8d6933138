"""
Gradient rules of ops through which no gradient flows: their results are constant almost
everywhere, or depend on constants alone.
"""

from __future__ import annotations

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import WITHOUT_GRADIENT
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule
from distir.gradients.rules.arithmetic import is_wanted
from distir.program import describe


@gradient_rule(*WITHOUT_GRADIENT)
def no_gradient(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """No operand has a gradient."""
    return [None] * len(op.operands)


@gradient_rule("onnx.OneHot", "onnx.Range")
def of_constants(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """
    No operand has a gradient, as these ops have constant bounds or values in programs.
    """
    if any(gradients) and any(is_wanted(v) for v in op.operands):
        raise DistIRError(
            f"{describe(op)} has a gradient only where its floating-point operands are "
            "constants; run fold-shapes first, or compute the values from a constant"
        )
    return [None] * len(op.operands)
