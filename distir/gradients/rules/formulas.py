"""Gradients of ONNX operators that are one op of `train`, whose class says so, and of SwiGLU."""

from __future__ import annotations

from xdsl.ir import SSAValue

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.train import Train
from distir.dialects.train_ops.activation import SwishGradOp
from distir.dialects.train_ops.base import FormulaOp
from distir.gradients.rule import GradientBuilder, Gradients, onnx_gradient


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
