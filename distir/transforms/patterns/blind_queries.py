"""
Recognises attention whose result is set to 0 for queries that see no key. PyTorch's
attention with a Boolean mask m is imported as `where(any(m), attention, 0)`, with the
lowest number in the attention's mask where m is false. `onnx.Attention` itself returns
0 for a query whose mask is minus infinity everywhere.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from xdsl.ir import SSAValue

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import known_shape, rank_of, shape_of
from distir.dialects.train_ops.dropout import DroppedAttentionOp
from distir.transforms.patterns.masks import KnownMasks
from distir.transforms.patterns.match import (
    array_of,
    element,
    made_before,
    number,
    producer,
    used_once,
)


class BlindQueryRaiser:
    """
    Replaces `where(any(m), attention, 0)` by attention with minus infinity in its mask.
    """

    def __init__(self, known: KnownMasks) -> None:
        self._known = known

    def replace(self, op: OnnxOp) -> bool:
        """
        Replaces `where(any(m), attention, 0)` by the attention if `op` is the last op
        of the expression. Returns whether it was replaced.
        """
        if op.name != "onnx.Where" or number(op.operands[2]) != 0.0:
            return False
        (condition, y), shape = op.operands[:2], known_shape(op.operands[0])
        # If the mask is a constant, `any(m)` may already be a constant too.
        seen = _mask_of_any(condition)
        seen = condition if seen is None and shape and shape[-1] == 1 else seen
        if seen is None or y.type != op.results[0].type or not used_once(y):
            return False
        owner = y.owner
        if isinstance(owner, DroppedAttentionOp):
            mask, is_causal = owner.mask, owner.is_causal is not None
        elif isinstance(owner, OnnxOp) and owner.name == "onnx.Attention":
            mask, is_causal = owner.input(3), bool(owner.attribute("is_causal"))
        else:
            return False
        if not self._known.lets_all_see(seen):
            new = None if mask is None or is_causal else _with_infinity(mask, seen)
            if new is None:
                return False
            owner.operands = [new if v is mask else v for v in owner.operands]
        y.name_hint = op.results[0].name_hint
        op.results[0].replace_all_uses_with(y)
        return True


def _mask_of_any(value: SSAValue) -> SSAValue | None:
    """
    Returns the Boolean m if `value` is `any(m)` over the last dimension, else None.
    """
    outer = producer(value, "Cast")
    highest = None if outer is None else producer(outer.operands[0], "ReduceMax")
    inner = None if highest is None else producer(highest.operands[0], "Cast")
    if highest is None or inner is None or not highest.attribute("keepdims"):
        return None
    axes, m = array_of(highest.input(1)), inner.operands[0]
    is_last = axes is not None and axes.tolist() in ([-1], [rank_of(m.type) - 1])
    is_boolean = str(element(m)) == str(element(value)) == "i1"
    return m if is_last and is_boolean else None


def _with_infinity(mask: SSAValue, seen: SSAValue) -> SSAValue | None:
    """
    Returns a copy of `mask` with minus infinity where `seen` is false. Returns None
    unless `mask` is 0 where `seen` is true and the lowest number elsewhere.
    """
    cast = producer(mask, "Cast")
    where = producer(mask if cast is None else cast.operands[0], "Where")
    kind = element(mask)
    if where is None or kind is None or where.operands[0] is not seen:
        return None
    shown, lowest = (array_of(v) for v in where.operands[1:])
    if shown is None or lowest is None or shown.any() or lowest.size != 1:
        return None
    # Any higher number would not hide a key for certain.
    if lowest.item() > ml_dtypes.finfo(lowest.dtype).min:
        return None
    dtype = numpy_dtype(kind)
    sides = [
        made_before(where, "Constant", [], (), kind, value=np.array(x, dtype))
        for x in (0.0, -np.inf)
    ]
    sizes = shape_of(where.results[0])
    return made_before(where, "Where", [seen, *sides], sizes, kind)
