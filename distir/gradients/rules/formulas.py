"""
Gradients that a list or a class states: none for ops whose results are constant almost
everywhere or depend on constants alone, and one op of `train` for others; and that of SwiGLU.
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
    """Needs both inputs: `y = swish(gate) * x`."""
    gate, x = op.operands
    alpha = op.attribute("alpha")
    scaled = build.onnx("Mul", dy, x)
    dgate = build.result(SwishGradOp(scaled, gate, alpha=alpha))
    return [dgate, build.onnx("Mul", dy, build.onnx("Swish", gate, alpha=alpha))]


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
