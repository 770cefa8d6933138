"""
The ops of one device for dropout, and sharding rules and ops of one device for
attention with dropout on its probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.ir import Operation, SSAValue

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.dropout import (
    DropoutOp,
    DroppedAttentionBase,
    DroppedAttentionGradOp,
    DroppedAttentionOp,
)
from distir.dialects.train_ops.splits import Split
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Rule
from distir.sharding.rules.attention import (
    AttentionFactors,
    attention_flops,
    gradient_rule,
    with_local_heads,
)
from distir.sharding.rules.builder import Dims, train_rule
from distir.sharding.rules.local_builder import LocalBuilder


@local_form("train.dropout")
def dropout_of_part(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for dropout: the op with this device's position in the
    tensor, which determines the device's part of the random mask.
    """
    op, builder = context.op, LocalBuilder(context)
    assert isinstance(op, DropoutOp)
    splits: list[Split] = list(op.parts)
    coordinates: list[SSAValue] = list(context.operands[2:])
    for dim, factors in enumerate(context.rule.operands[0]):
        left = shape_of(op.x)[dim]
        for shard in (s for f in factors for s in context.assignment.get(f, ())):
            parts = context.mesh.size(shard.axis)
            run = left // parts if shard.run is None else shard.run
            splits.append(Split(dim, parts, run))
            coordinates.append(builder.coordinate([shard.axis]))
            left //= parts
    if len(splits) == len(op.parts):
        return [context.same_op()]
    x, counter = context.operands[:2]
    local = DropoutOp(
        *(x, counter, coordinates),
        ratio=op.ratio,
        seed=op.seed,
        stream=op.stream,
        global_shape=op.whole_shape,
        splits=splits,
        mask=None if op.mask is None else context.result_types[1],
    )
    local.attributes.update(op.attributes)
    return [*builder.ops, local]


def _drawn(op: DroppedAttentionBase) -> list[Dims]:
    """
    Returns the dimensions of the operands that determine the random numbers, the
    counter and the coordinates. These dimensions have no factors.
    """
    none: Dims = ()
    return [none for _ in (op.counter, *op.coordinates)]


@train_rule("dropped_attention")
def dropped_attention(op: DroppedAttentionOp) -> Rule:
    """
    Returns the sharding rule of attention with dropout: the rule of attention, with a
    replicated counter of random numbers.
    """
    f = AttentionFactors(op)
    return f.builder.rule(
        [f.q, f.k, f.v, *f.mask, *_drawn(op)],
        [f.y, f.logsumexp],
        flops=attention_flops(op),
    )


@train_rule("dropped_attention_grad")
def dropped_attention_gradient(op: DroppedAttentionGradOp) -> Rule:
    """
    Returns the sharding rule of the gradient of attention with dropout: the rule of the
    gradient of attention, with a replicated counter of random numbers.
    """
    f = AttentionFactors(op)
    operands = [f.y, f.y, f.logsumexp, f.q, f.k, f.v, *f.mask, *_drawn(op)]
    return gradient_rule(op, f, operands)


@local_form("train.dropped_attention", "train.dropped_attention_grad")
def dropped_attention_of_part(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for attention with dropout, or for its gradient: the op
    with the local heads and with this device's position in the probabilities, which
    determines the elements that dropout keeps.
    """
    op, builder = context.op, LocalBuilder(context)
    assert isinstance(op, DroppedAttentionBase)
    local = with_local_heads(context)
    assert isinstance(local, DroppedAttentionBase)
    factors = AttentionFactors(op)
    splits: list[Split] = list(op.parts)
    coordinates: list[SSAValue] = list(local.coordinates)
    for dim, of_dim in enumerate((factors.batch, factors.head, factors.row)):
        sizes = [context.rule.factors[f].size for f in of_dim]
        for index, factor in enumerate(of_dim):
            left, minor = sizes[index], prod(sizes[index + 1 :])
            for shard in context.assignment.get(factor, ()):
                parts = context.mesh.size(shard.axis)
                left //= parts
                run = left if shard.run is None else shard.run
                splits.append(Split(dim, parts, run * minor))
                coordinates.append(builder.coordinate([shard.axis]))
    if len(splits) == len(op.parts):
        return [local]
    gradient = [] if isinstance(op, DroppedAttentionOp) else context.operands[:3]
    drawing = {**op.drawing, "global_shape": op.whole_shape, "splits": splits}
    others = {
        name: local.properties.get(name)
        for name in ("is_causal", "scale", "softcap", "q_num_heads", "kv_num_heads")
    }
    found = type(local)(
        *(*gradient, local.q, local.k, local.v, local.mask, local.counter, coordinates),
        **drawing,
        **others,
    )
    found.attributes.update(op.attributes)
    local.erase()  # else it would stay a user of its operands
    return [*builder.ops, found]
