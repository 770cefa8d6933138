"""Ranges of the integers that a value can hold."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from distir.dialects.collective import CollectiveOp, CoordinateOp
from distir.lowering.emitter import known_constant

_PASSES_ON = frozenset(
    (
        "onnx.Identity",
        "onnx.Reshape",
        "onnx.Squeeze",
        "onnx.Unsqueeze",
        "onnx.Expand",
        "onnx.Transpose",
        "onnx.Slice",
        "onnx.Cast",
    )
)
_COMBINES = frozenset(("onnx.Add", "onnx.Mul", "onnx.Where", "onnx.Max", "onnx.Concat"))


def is_non_negative(value: SSAValue) -> bool:
    """Whether no element can be negative, as far as the ops that computed it tell."""
    known = known_constant(value)
    if known is not None:
        return bool((known >= 0).all())
    op = value.owner
    if not isinstance(op, Operation):
        return False
    if isinstance(op, CoordinateOp):
        return True
    if isinstance(op, CollectiveOp) and op.reduction is None:
        return is_non_negative(op.source)
    if op.name in ("onnx.Clip", "onnx.Range", "onnx.Max", "onnx.Abs"):
        if op.name == "onnx.Abs":
            return True
        if op.name == "onnx.Range":
            return all(is_non_negative(v) for v in op.operands)
        if op.name == "onnx.Max":
            return any(is_non_negative(v) for v in op.operands)
        return len(op.operands) > 1 and is_non_negative(op.operands[1])
    if op.name in _PASSES_ON:
        return is_non_negative(op.operands[0])
    if op.name in _COMBINES:
        operands = op.operands[1:] if op.name == "onnx.Where" else op.operands
        return all(is_non_negative(v) for v in operands)
    return False
