"""Rules and local form of fused attention in training, and of its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Operation

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.attention import (
    AttentionGradOp,
    AttentionOp,
    FusedAttentionOp,
    MergeAttentionOp,
    PlacedAttentionGradOp,
    PlacedAttentionOp,
)
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Dim, Rule
from distir.sharding.rules.builder import Dims, RuleBuilder, train_rule


class AttentionFactors:
    """
    The factors of attention. Batch and heads are parallel, and so are queries, unless a
    causal mask counts their positions. Query heads are `[key heads, group]`. Where queries
    and keys see each other only within blocks, the blocks are parallel.
    """

    def __init__(self, op: FusedAttentionOp):
        self.builder = builder = RuleBuilder(op)
        sizes, self.is_packed = op.sizes, op.is_packed
        self.batch = builder.factor(sizes.batch)
        self.key_head = builder.factor(sizes.key_heads)
        self.group = builder.factor(sizes.query_heads // sizes.key_heads)
        self.head = self.key_head + self.group
        kind = "parallel" if op.is_causal is None else "replicate"
        self.rows_of_keys: Dim = ()
        """The factors of queries over which the gradients of keys are sums."""
        if op.blocks is None:
            self.row = self.rows_of_keys = builder.factor(sizes.queries, kind)
            self.column = builder.factor(sizes.keys, "replicate")
        else:
            block = builder.factor(op.block_count)
            self.row, self.column = (
                self._in_blocks(op, block, length)
                for length in (sizes.queries, sizes.keys)
            )
        column = self.column
        size = builder.factor(sizes.head, "replicate")
        out_size = builder.factor(sizes.value_head, "replicate")
        self.q = self._tensor(self.head, self.row, size)
        self.k = self._tensor(self.key_head, column, size)
        self.v = self._tensor(self.key_head, column, out_size)
        self.y = self._tensor(self.head, self.row, out_size)
        self.logsumexp: Dims = (self.batch, self.head, self.row)
        scores = (self.batch, self.head, self.row, column)
        self.mask = [] if op.mask is None else [builder.aligned(op.mask, scores)]

    def _in_blocks(self, op: FusedAttentionOp, block: Dim, length: int) -> Dim:
        """
        Returns a dimension that consists of blocks, of which only the number of blocks can
        be split.
        """
        run = op.run_length
        rounds = 1 if run is None else length // (op.block_count * run)
        inner = length // (op.block_count * rounds)
        outer = self.builder.factor(rounds, "replicate")
        return outer + block + self.builder.factor(inner, "replicate")

    def _tensor(self, heads: Dim, length: Dim, inner: Dim) -> Dims:
        if self.is_packed:
            return (self.batch, length, heads + inner)
        return (self.batch, heads, length, inner)


@train_rule("attention")
def attention(op: AttentionOp) -> Rule:
    """
    The rule of attention: batch and heads are parallel, and queries if it is not causal.
    """
    f = AttentionFactors(op)
    return f.builder.rule(
        [f.q, f.k, f.v, *f.mask], [f.y, f.logsumexp], flops=attention_flops(op)
    )


@train_rule("placed_attention")
def placed_attention(op: PlacedAttentionOp) -> Rule:
    """
    Returns the rule of attention with positions: queries are parallel, as their positions
    are split with them.
    """
    f = AttentionFactors(op)
    return f.builder.rule(
        [(f.row,), (f.column,), f.q, f.k, f.v, *f.mask],
        [f.y, f.logsumexp],
        flops=attention_flops(op),
    )


def attention_flops(op: FusedAttentionOp) -> int:
    """Returns the floating-point operations of the two products of attention."""
    sizes = op.sizes
    work = prod(sizes.scores) * (sizes.head + sizes.value_head)
    return 2 * work // op.block_count


def _gradient_flops(op: FusedAttentionOp) -> int:
    sizes = op.sizes
    work = prod(sizes.scores) * (3 * sizes.head + 2 * sizes.value_head)
    return 2 * work // op.block_count


@train_rule("attention_grad")
def attention_gradient(op: AttentionGradOp) -> Rule:
    """
    The rule of attention's gradients: parallel as attention is. The gradients of keys and
    values are sums over the queries and over the query heads of a key head.
    """
    f = AttentionFactors(op)
    return gradient_rule(op, f, [f.y, f.y, f.logsumexp, f.q, f.k, f.v, *f.mask])


@train_rule("placed_attention_grad")
def placed_attention_gradient(op: PlacedAttentionGradOp) -> Rule:
    """Returns the rule of the gradient of attention with positions."""
    f = AttentionFactors(op)
    return gradient_rule(
        op,
        f,
        [f.y, f.y, f.logsumexp, (f.row,), (f.column,), f.q, f.k, f.v, *f.mask],
    )


def gradient_rule(
    op: FusedAttentionOp, f: AttentionFactors, operands: list[Dims]
) -> Rule:
    """
    Returns the rule of a gradient of attention, given the dimensions of its operands.
    """
    summed = (f.group, f.rows_of_keys)
    return f.builder.rule(
        operands,
        [f.q, f.k, f.v],
        # Both `dy` and `y dy` are linear in `dy`.
        linear=[(0,)],
        reduced={1: summed, 2: summed},
        flops=_gradient_flops(op),
    )


@train_rule("merge_attention")
def merge_attention(op: MergeAttentionOp) -> Rule:
    """Returns the rule of merging: batch, heads and queries are parallel."""
    builder = RuleBuilder(op)
    batch, head, row = rows = builder.factors(shape_of(op.logsumexp))
    size = shape_of(op.y)[-1]
    if op.is_packed:
        inner = builder.factor(size // shape_of(op.logsumexp)[1], "replicate")
        y: Dims = (batch, row, head + inner)
    else:
        y = (*rows, builder.factor(size, "replicate"))
    return builder.rule([y, rows, y, rows], [y, rows])


@local_form(
    "train.attention",
    "train.attention_grad",
    "train.placed_attention",
    "train.placed_attention_grad",
)
def attention_of_part(context: LocalContext) -> Sequence[Operation]:
    """
    Returns the local form of attention: attributes count the local heads (of packed
    operands) and the local blocks.
    """
    op, local = context.op, with_local_heads(context)
    assert isinstance(op, FusedAttentionOp)
    if op.blocks is not None:
        left = op.block_count * local.sizes.queries // op.sizes.queries
        if left > 1:
            local.properties["blocks"] = IntegerAttr(left, i64)
        else:
            local.blocks = local.run = None
    return [local]


def with_local_heads(context: LocalContext) -> FusedAttentionOp:
    """Returns a device's part of attention, which counts its own heads."""
    op, local = context.op, context.same_op()
    assert isinstance(op, FusedAttentionOp) and isinstance(local, FusedAttentionOp)
    if op.is_packed:
        sizes = op.sizes
        for name, whole, part, heads in (
            ("q_num_heads", op.q, local.q, sizes.query_heads),
            ("kv_num_heads", op.k, local.k, sizes.key_heads),
        ):
            mine = heads * shape_of(part)[-1] // shape_of(whole)[-1]
            local.properties[name] = IntegerAttr(mine, i64)
    return local
