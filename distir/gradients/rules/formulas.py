"""
Gradient rules given by lists and classes, and the rule of SwiGLU. Ops without a
gradient are listed here: their results are constant almost everywhere, or depend only
on constants. A class of op in `train` that names an operator in `GRADIENT_OF` computes
the gradient of this operator.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import WITHOUT_GRADIENT
from distir.dialects.train import Train
from distir.dialects.train_ops.activation import SwishGradOp
from distir.dialects.train_ops.base import FormulaOp
from distir.errors import DistIRError
from distir.gradients.rule import (
    GradientBuilder,
    Gradients,
    gradient_rule,
    onnx_gradient,
)
from distir.gradients.rules.arithmetic import is_wanted
from distir.program import describe


def _register(kernel: type[FormulaOp]) -> None:
    attributes = [*kernel.get_irdl_definition().properties]

    @onnx_gradient(kernel.GRADIENT_OF)
    def rule(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:  # pyright: ignore[reportUnusedFunction]
        kept = op.results[0] if kernel.FROM_RESULT else op.operands[0]
        given = {name: op.attribute(name) for name in attributes}
        return [build.result(kernel(dy, kept, **given))]


for _op in Train.operations:
    if issubclass(_op, FormulaOp) and _op.GRADIENT_OF:
        _register(_op)


@onnx_gradient("SwiGLU")
def swi_glu(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of SwiGLU, `y = swish(gate) * x`. The gradients are computed from both
    inputs.
    """
    gate, x = op.operands
    alpha = op.attribute("alpha")
    scaled = build.onnx("Mul", dy, x)
    dgate = build.result(SwishGradOp(scaled, gate, alpha=alpha))
    return [dgate, build.onnx("Mul", dy, build.onnx("Swish", gate, alpha=alpha))]


@gradient_rule(*WITHOUT_GRADIENT)
def no_gradient(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """Gradient rule of ops without a gradient: None for every operand."""
    return [None] * len(op.operands)


@gradient_rule("onnx.OneHot", "onnx.Range")
def of_constants(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of OneHot and Range: None for every operand, because the values of
    OneHot and the bounds of Range are constants. Raises DistIRError if a floating-point
    operand is not a constant.
    """
    if any(gradients) and any(is_wanted(v) for v in op.operands):
        raise DistIRError(
            f"{describe(op)} has a gradient only where its floating-point operands are "
            "constants; run fold-shapes first, or compute the values from a constant"
        )
    return [None] * len(op.operands)
