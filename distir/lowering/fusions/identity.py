"""Removes ops that return their operand."""

from __future__ import annotations

from distir.dialects.onnx_op import OnnxOp
from distir.dialects.tensors import known_shape

_SAME_IF_SAME_TYPE = frozenset(
    (
        "onnx.Reshape",
        "onnx.Flatten",
        "onnx.Squeeze",
        "onnx.Unsqueeze",
        "onnx.Expand",
        "onnx.Cast",
        "onnx.CastLike",
    )
)


def drop_identity(op: OnnxOp) -> bool:
    """
    Replaces an Identity, a reshape to the same shape, or a choice between a value and
    itself, by its operand; returns whether it did.
    """
    same = op.name == "onnx.Identity"
    if op.name in _SAME_IF_SAME_TYPE:
        shape = known_shape(op.results[0])
        same = shape is not None and op.operands[0].type == op.results[0].type
    if op.name == "onnx.Transpose":
        order = op.attribute("perm")
        same = order is not None and list(order) == sorted(order)
    if op.name == "onnx.Where" and op.operands[1] is op.operands[2]:
        # Remains of a choice that only mattered for gradients.
        same = op.operands[1].type == op.results[0].type
    if not same:
        return False
    kept = op.operands[1] if op.name == "onnx.Where" else op.operands[0]
    op.results[0].replace_all_uses_with(kept)
    return True
