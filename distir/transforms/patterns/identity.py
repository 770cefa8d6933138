"""Removes ops that return their operand unchanged."""

from __future__ import annotations

from distir.dialects.constants import direct_constant
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.traits import RESHAPES
from distir.dialects.tensors import known_shape

_SAME_IF_SAME_TYPE = RESHAPES | {"onnx.Expand", "onnx.Cast", "onnx.CastLike"}


def drop_identity(op: OnnxOp) -> bool:
    """
    Replaces `op` by its operand if its result equals the operand. Returns whether it
    was replaced. The ops that can be replaced are an Identity, a reshape to the same
    shape, a cast to the same type, a dropout outside of training, and a choice between
    a value and the same value.
    """
    same = op.name == "onnx.Identity" or _keeps_all(op)
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


def _keeps_all(op: OnnxOp) -> bool:
    """Whether `op` is a Dropout outside of training mode whose mask is unused."""
    mode = op.input(2) if op.name == "onnx.Dropout" else None
    known = None if mode is None else direct_constant(mode)
    if known is None or known.any():
        return False
    return all(result.first_use is None for result in op.results[1:])
