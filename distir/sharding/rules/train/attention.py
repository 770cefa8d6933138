"""Rule and local form of the gradient of fused attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Operation

from distir.dialects.train_ops.attention import AttentionGradOp
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Dim, Rule
from distir.sharding.rules.builder import Dims, RuleBuilder, shape, train_rule


@train_rule("attention_grad")
def attention_gradient(op: AttentionGradOp) -> Rule:
    """
    The rule of attention's gradients: batch and heads are parallel, queries too unless
    a causal mask counts their positions. The gradients of keys and values are sums over
    the queries and over the query heads of a key head.
    """
    builder = RuleBuilder(op)
    sizes = op.sizes
    batch = builder.factor(sizes.batch)
    key_head = builder.factor(sizes.key_heads)
    group = builder.factor(sizes.query_heads // sizes.key_heads)
    head = key_head + group
    row = builder.factor(
        sizes.queries, "parallel" if op.is_causal is None else "replicate"
    )
    column = builder.factor(sizes.keys, "replicate")
    size = builder.factor(sizes.head, "replicate")
    out_size = builder.factor(sizes.value_head, "replicate")

    def tensor(heads: Dim, length: Dim, inner: Dim) -> Dims:
        if op.is_packed:
            return (batch, length, heads + inner)
        return (batch, heads, length, inner)

    q = tensor(head, row, size)
    k, v = tensor(key_head, column, size), tensor(key_head, column, out_size)
    inputs = [tensor(head, row, out_size), q, k, v]
    if op.mask is not None:
        inputs.append(builder.aligned(op.mask, (batch, head, row, column)))
    return builder.rule(
        inputs,
        [q, k, v],
        linear=[(0,)],
        reduced={1: (group, row), 2: (group, row)},
        flops=2 * prod(sizes.scores) * (3 * sizes.head + 2 * sizes.value_head),
    )


@local_form("train.attention_grad")
def attention_gradient_local(context: LocalContext) -> Sequence[Operation]:
    """Counts the local heads of packed operands."""
    local = context.same_op()
    assert isinstance(context.op, AttentionGradOp)
    sizes = context.op.sizes
    if context.op.is_packed:
        for name, index, heads in (
            ("q_num_heads", 1, sizes.query_heads),
            ("kv_num_heads", 2, sizes.key_heads),
        ):
            width = shape(context.op.operands[index])[-1]
            mine = shape(context.operands[index])[-1]
            local.properties[name] = IntegerAttr(heads * mine // width, i64)
    return [local]
