"""Emitters of fused attention in training, and of its gradient."""

from __future__ import annotations

from distir.dialects.train_ops.attention import FusedAttentionOp
from distir.dialects.train_ops.dropped_attention import DroppedAttentionBase
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
    arguments = [*call.operands(), *settings(op)]
    return call.like_op("fused_attention", arguments)


@torch_emitter("train.dropped_attention", "train.dropped_attention_grad")
def dropped_attention(call: Call) -> str:
    op = call.op
    assert isinstance(op, DroppedAttentionBase)
    for module in ("dropout", "fused_attention", "random_numbers"):
        call.helper(module)
    given, drawn = call.operands(), 1 + len(op.coordinates)
    arguments = [*given[:-drawn], *settings(op)]
    if op.mask is not None:
        mask = arguments.pop(len(given) - drawn - 1)
        arguments.append(f"mask={mask}")
    numbers = [
        *given[-drawn:],
        f"key={(op.seed.value.data, op.stream.value.data)!r}",
        f"threshold={op.threshold!r}",
        f"scale={op.kept_factor!r}",
        f"shape={op.whole_shape!r}",
        f"splits={[tuple(split) for split in op.parts]!r}",
    ]
    module = call.helper("dropped_attention")
    arguments.append(f"numbers={module}.DrawnFactors({', '.join(numbers)})")
    return call.like_op("dropped_attention", arguments)


def settings(op: FusedAttentionOp) -> list[str]:
    """Returns the properties of attention as arguments of a call."""
    arguments: list[str] = []
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
    return arguments


torch_templates({"merge_attention": "merge_attention({*})"}, "train", "fused_attention")
