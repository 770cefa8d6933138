"""Emitter of the gradient of fused attention."""

from __future__ import annotations

from distir.dialects.train_ops.attention import AttentionGradOp
from distir.lowering.emitter import Call, torch_emitter


@torch_emitter("train.attention_grad")
def attention_gradient(call: Call) -> str:
    op = call.op
    assert isinstance(op, AttentionGradOp)
    call.helper("attention")
    helper = call.helper("attention_gradients")
    causal = op.is_causal is not None
    if causal and op.mask is not None:
        # PyTorch's attention takes one or the other.
        sizes = op.sizes
        mask = f"{helper}.with_causal({call.operand(4)}, {sizes.queries}, {sizes.keys})"
        operands = [*call.operands()[:4], mask]
    else:
        operands = call.operands()
    options = "" if op.scale is None else f", scale={op.scale.value.data!r}"
    if causal and op.mask is None:
        options += ", is_causal=True"
    if op.q_num_heads is not None and op.kv_num_heads is not None:
        heads = op.q_num_heads.value.data, op.kv_num_heads.value.data
        options += f", heads={heads!r}"
    return f"{helper}.attention_grad({', '.join(operands)}{options})"
