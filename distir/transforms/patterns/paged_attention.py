"""
Recognises attention whose keys and values are read from the pages of a cache. One op
then reads the pages directly, without contiguous copies of keys and values.
"""

from __future__ import annotations

from xdsl.rewriter import Rewriter

from distir.dialects.dist_attributes import SCOPE
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import known_shape, shape_of
from distir.dialects.train_ops.paged_attention import PagedAttentionOp, PagedReadOp

_PLAIN = ("is_causal", "softcap", "q_num_heads", "qk_matmul_output_mode")
"""The attributes of attention without which it is that of pages."""


def raise_paged_attention(op: OnnxOp) -> bool:
    """
    Replaces `op` by `train.paged_attention` if `op` is an `onnx.Attention` whose keys
    and values are read through one table of pages. Returns whether it was replaced.
    """
    if op.name != "onnx.Attention" or len(op.operands) != 4:
        return False
    q, *read, mask = op.operands
    keys, values = (value.owner for value in read)
    if not isinstance(keys, PagedReadOp) or not isinstance(values, PagedReadOp):
        return False
    windows = [op.attribute(f"{side}_window_size", -1) for side in ("left", "right")]
    is_plain = max(windows) < 0 and not any(op.attribute(name) for name in _PLAIN)
    if not is_plain or "softmax_precision" in op.properties or len(op.results) > 1:
        return False
    if op.input(3) is not mask or keys.table is not values.table:
        return False
    batch, _, queries, _ = shape_of(q)
    if known_shape(mask) != (batch, 1, queries, keys.sizes.slots):
        return False
    pools = keys.pool, values.pool
    new = PagedAttentionOp(q, *pools, keys.table, mask, scale=op.attribute("scale"))
    if SCOPE in op.attributes:
        new.attributes[SCOPE] = op.attributes[SCOPE]
    new.y.name_hint = op.results[0].name_hint
    Rewriter.replace_op(op, new)
    return True
