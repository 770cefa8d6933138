"""Rules and local form of fused attention in training, and of its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Operation

from distir.dialects.train_ops.attention import (
    AttentionGradOp,
    AttentionOp,
    FusedAttentionOp,
)
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Dim, Rule
from distir.sharding.rules.builder import Dims, RuleBuilder, shape, train_rule


class _Factors:
    """
    The factors of attention. Batch and heads are parallel, queries too unless a causal mask
    counts their positions. Query heads are `[key heads, group]`.
    """

    def __init__(self, op: FusedAttentionOp):
        self.builder = builder = RuleBuilder(op)
        sizes, self.is_packed = op.sizes, op.is_packed
        self.batch = builder.factor(sizes.batch)
        self.key_head = builder.factor(sizes.key_heads)
        self.group = builder.factor(sizes.query_heads // sizes.key_heads)
        self.head = self.key_head + self.group
        kind = "parallel" if op.is_causal is None else "replicate"
        self.row = builder.factor(sizes.queries, kind)
        column = builder.factor(sizes.keys, "replicate")
        size = builder.factor(sizes.head, "replicate")
        out_size = builder.factor(sizes.value_head, "replicate")
        self.q = self._tensor(self.head, self.row, size)
        self.k = self._tensor(self.key_head, column, size)
        self.v = self._tensor(self.key_head, column, out_size)
        self.y = self._tensor(self.head, self.row, out_size)
        self.logsumexp: Dims = (self.batch, self.head, self.row)
        scores = (self.batch, self.head, self.row, column)
        self.mask = [] if op.mask is None else [builder.aligned(op.mask, scores)]

    def _tensor(self, heads: Dim, length: Dim, inner: Dim) -> Dims:
        if self.is_packed:
            return (self.batch, length, heads + inner)
        return (self.batch, heads, length, inner)


@train_rule("attention")
def attention(op: AttentionOp) -> Rule:
    """
    The rule of attention: batch and heads are parallel, and queries if it is not causal.
    """
    f, sizes = _Factors(op), op.sizes
    return f.builder.rule(
        [f.q, f.k, f.v, *f.mask],
        [f.y, f.logsumexp],
        flops=2 * prod(sizes.scores) * (sizes.head + sizes.value_head),
    )


@train_rule("attention_grad")
def attention_gradient(op: AttentionGradOp) -> Rule:
    """
    The rule of attention's gradients: parallel as attention is. The gradients of keys and
    values are sums over the queries and over the query heads of a key head.
    """
    f, sizes = _Factors(op), op.sizes
    summed = (f.group, f.row)
    return f.builder.rule(
        [f.y, f.y, f.logsumexp, f.q, f.k, f.v, *f.mask],
        [f.q, f.k, f.v],
        # Both `dy` and `y dy` are linear in `dy`.
        linear=[(0,)],
        reduced={1: summed, 2: summed},
        flops=2 * prod(sizes.scores) * (3 * sizes.head + 2 * sizes.value_head),
    )


@local_form("train.attention", "train.attention_grad")
def attention_of_part(context: LocalContext) -> Sequence[Operation]:
    """
    The local form of attention: on packed operands, the attributes that count heads count
    local ones.
    """
    op, local = context.op, context.same_op()
    assert isinstance(op, FusedAttentionOp) and isinstance(local, FusedAttentionOp)
    if op.is_packed:
        sizes = op.sizes
        for name, whole, part, heads in (
            ("q_num_heads", op.q, local.q, sizes.query_heads),
            ("kv_num_heads", op.k, local.k, sizes.key_heads),
        ):
            mine = heads * shape(part)[-1] // shape(whole)[-1]
            local.properties[name] = IntegerAttr(mine, i64)
    return [local]
