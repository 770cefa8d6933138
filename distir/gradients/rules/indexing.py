"""The gradient rule of look-ups."""

from __future__ import annotations

from xdsl.ir import SSAValue

from distir.dialects.constants import direct_constant
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.train_ops.indexing import GatherGradOp
from distir.gradients.rule import (
    GradientBuilder,
    Gradients,
    onnx_gradient,
)


@onnx_gradient("Gather")
def gather(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    The rows of a table that data looks up (an embedding) are split as the table's; if
    constants select parts of a value, the value need not be kept for its shape.
    """
    data, indices = op.operands
    axis = op.attribute("axis")
    is_table = axis == 0 and direct_constant(indices) is None
    split_like = data if is_table else None
    grad = GatherGradOp(dy, indices, split_like, axis=axis, ddata=data.type)
    return [build.result(grad)]
