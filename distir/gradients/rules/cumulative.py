"""The gradient rules of running sums and products."""

from __future__ import annotations

from xdsl.ir import SSAValue

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.train_ops.cumulative import CumProdGradOp
from distir.gradients.rule import GradientBuilder, Gradients, onnx_gradient
from distir.gradients.rules.shape import constant_input


@onnx_gradient("CumSum")
def running_sum(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """The running sum from the other end."""
    dx = build.onnx(
        "CumSum",
        dy,
        op.operands[1],
        exclusive=op.attribute("exclusive"),
        reverse=1 - op.attribute("reverse"),
    )
    return [dx]


@onnx_gradient("CumProd")
def running_product(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """One kernel, which is right where factors are zero. Raises DistIRError."""
    axis = constant_input(op, 1)
    assert axis is not None
    made = CumProdGradOp(
        *(dy, op.operands[0]),
        axis=int(axis.reshape(-1)[0]),
        exclusive=bool(op.attribute("exclusive")),
        reverse=bool(op.attribute("reverse")),
    )
    return [build.result(made)]
