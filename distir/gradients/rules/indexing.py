"""Gradients of look-ups."""

from __future__ import annotations

from distir.dialects.constants import direct_constant
from distir.dialects.onnx import OnnxOp
from distir.dialects.train_ops.indexing import GatherGradOp
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule


@gradient_rule("onnx.Gather")
def gather(op: OnnxOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """
    Rows of a table that is looked up by data (an embedding) split as the table's; where
    constants select parts of a value, that value need not be kept for its shape.
    """
    (dy,) = gradients
    assert dy is not None
    data, indices = op.operands
    axis = op.attribute("axis")
    is_table = axis == 0 and direct_constant(indices) is None
    split_like = data if is_table else None
    grad = GatherGradOp(dy, indices, split_like, axis=axis, ddata=data.type)
    return [build.add(grad).results[0], None]
