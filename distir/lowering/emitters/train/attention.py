"""Emitters of fused attention in training, and of its gradient."""

from __future__ import annotations

from distir.dialects.train_ops.attention import FusedAttentionOp
from distir.lowering.emitter import Call, torch_emitter, torch_templates


@torch_emitter(
    "train.attention",
    "train.attention_grad",
    "train.placed_attention",
    "train.placed_attention_grad",
)
def fused_attention(call: Call) -> str:
    op = call.op
    assert isinstance(op, FusedAttentionOp)
    arguments = call.operands()
    if op.block_count > 1:
        arguments.append(f"blocks={(op.block_count, op.run_length)!r}")
    if op.scale is not None:
        arguments.append(f"scale={op.scale.value.data!r}")
    if op.cap is not None:
        arguments.append(f"softcap={op.cap!r}")
    if op.is_causal is not None:
        arguments.append("is_causal=True")
    if op.q_num_heads is not None and op.kv_num_heads is not None:
        heads = op.q_num_heads.value.data, op.kv_num_heads.value.data
        arguments.append(f"heads={heads!r}")
    return call.like_op("fused_attention", arguments)


torch_templates({"merge_attention": "merge_attention({*})"}, "train", "fused_attention")
