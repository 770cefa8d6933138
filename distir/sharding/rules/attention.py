"""
Sharding rules of ONNX attention, of attention in training with its gradient, and of
rotary position embedding, and their local forms: the ops of one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Operation

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.attention import (
    AttentionGradOp,
    AttentionOp,
    FusedAttentionOp,
    MergeAttentionOp,
    PlacedAttentionGradOp,
    PlacedAttentionOp,
)
from distir.dialects.train_ops.paged_attention import PagedAttentionOp
from distir.dialects.train_ops.split_attention import SplitAttentionOp
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Dim, Rule
from distir.sharding.rules.builder import Dims, RuleBuilder, onnx_rule, train_rule
from distir.sharding.rules.local_builder import LocalBuilder


@onnx_rule("Attention")
def attention(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of attention. Batch and heads are parallel. Query heads
    are `[key heads, group]`: the queries of a group share a key head, so a split of
    `group` needs whole keys. Queries are parallel too, unless a causal mask or a window
    depends on their positions.
    """
    builder = RuleBuilder(op)
    query, key, value = (shape_of(op.operands[i]) for i in range(3))
    packed = len(query) == 3
    if packed:
        batch_size, queries, width = query
        query_heads, key_heads = (
            op.attribute("q_num_heads"),
            op.attribute("kv_num_heads"),
        )
        head_size, value_size = width // query_heads, value[-1] // key_heads
        keys = key[1]
    else:
        batch_size, query_heads, queries, head_size = query
        key_heads, keys, value_size = key[1], key[2], value[-1]
    if not query_heads or not key_heads or query_heads % key_heads:
        return Rule.replicated(op)
    past = shape_of(op.input(4))
    total = keys + (past[2] if past else 0)
    positional = (
        op.attribute("is_causal")
        or op.attribute("left_window_size") >= 0
        or op.attribute("right_window_size") >= 0
    )

    batch = builder.factor(batch_size)
    key_head = builder.factor(key_heads)
    head = key_head + builder.factor(query_heads // key_heads)
    row = builder.factor(queries, "replicate" if positional else "parallel")
    column = builder.factor(keys, "replicate")
    size = builder.factor(head_size, "replicate")
    out_size = builder.factor(value_size, "replicate")
    all_columns = column if total == keys else builder.factor(total, "replicate")

    def tensor(heads: Dim, length: Dim, inner: Dim) -> Dims:
        if packed:
            return (batch, length, heads + inner)
        return (batch, heads, length, inner)

    before = builder.factor(past[2], "replicate") if past else ()
    scores = (batch, head, row, all_columns)
    return builder.rule(
        [
            tensor(head, row, size),
            tensor(key_head, column, size),
            tensor(key_head, column, out_size),
            builder.aligned(op.input(3), scores),
            (batch, key_head, before, size),
            (batch, key_head, before, out_size),
            (batch,),
        ],
        [
            tensor(head, row, out_size),
            (batch, key_head, all_columns, size),
            (batch, key_head, all_columns, out_size),
            scores,
        ],
        flops=2
        * prod((batch_size, query_heads, queries, total))
        * (head_size + value_size),
    )


@local_form("onnx.Attention")
def attention_local(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for attention: the op with the number of local heads in its
    attributes, if operands are packed.
    """
    builder = LocalBuilder(context)
    local: dict[str, int] = {}
    for name, index in (("q_num_heads", 0), ("kv_num_heads", 1)):
        if name in builder.op.properties:
            width, mine = (
                shape_of(v)[-1]
                for v in (context.op.operands[index], context.operands[index])
            )
            local[name] = builder.op.attribute(name) * mine // width
    return builder.finish(attributes=local)


@onnx_rule("RotaryEmbedding")
def rotary_embedding(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of rotary embedding. Batch, heads and positions are
    parallel. With position ids, rows of the caches are looked up, so the caches are
    whole. Without them, the caches have the batch and positions of the input.
    """
    builder = RuleBuilder(op)
    sizes = shape_of(op.operands[0])
    heads = op.attribute("num_heads", 0) or 1
    if len(sizes) == 3:
        batch, row = builder.factors(sizes[:2])
        inner = builder.factor(sizes[2] // heads, "replicate")
        dims: Dims = (batch, row, builder.factor(heads) + inner)
    else:
        batch, head, row = builder.factors(sizes[:3])
        dims = (batch, head, row, builder.factor(sizes[3], "replicate"))
    linear = [(0,)]
    if op.input(3) is not None:
        return builder.rule({0: dims, 3: (batch, row)}, [dims], linear=linear)
    cache = builder.aligned(op.operands[1], (batch, row, ()))
    return builder.rule([dims, cache, cache], [dims], linear=linear)


@local_form("onnx.RotaryEmbedding")
def rotary_embedding_local(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for rotary embedding. On packed operands, the attribute
    `num_heads` is the number of local heads.
    """
    builder = LocalBuilder(context)
    heads = builder.op.attribute("num_heads", 0)
    if not heads:
        return [context.same_op()]
    before, after = shape_of(context.op.operands[0]), shape_of(context.operands[0])
    axis = 2 if len(before) == 3 else 1
    return builder.finish(attributes={"num_heads": heads * after[axis] // before[axis]})


class AttentionFactors:
    """
    The factors of attention. Batch and heads are parallel, and so are queries, unless a
    causal mask depends on their positions. Query heads are `[key heads, group]`. If
    queries attend only to keys of their own block, blocks are parallel.
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
        """
        The factors of queries that the gradients of keys and values are sums over.
        """
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
        Returns a dimension of `length` elements that consists of blocks. Only the
        number of blocks can be split.
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
def fused_attention(op: AttentionOp) -> Rule:
    """
    Returns the sharding rule of attention. Batch and heads are parallel, and queries
    too if the attention is not causal.
    """
    f = AttentionFactors(op)
    return f.builder.rule(
        [f.q, f.k, f.v, *f.mask], [f.y, f.logsumexp], flops=attention_flops(op)
    )


@train_rule("placed_attention")
def placed_attention(op: PlacedAttentionOp) -> Rule:
    """
    Returns the sharding rule of attention with explicit positions. Queries are
    parallel, because their positions are split with them.
    """
    f = AttentionFactors(op)
    return f.builder.rule(
        [(f.row,), (f.column,), f.q, f.k, f.v, *f.mask],
        [f.y, f.logsumexp],
        flops=attention_flops(op),
    )


def attention_flops(op: FusedAttentionOp) -> int:
    """
    Returns the number of floating-point operations of the two matrix products of
    attention.
    """
    sizes = op.sizes
    work = prod(sizes.scores) * (sizes.head + sizes.value_head)
    return 2 * work // op.block_count


def _gradient_flops(op: FusedAttentionOp) -> int:
    """
    Returns the number of floating-point operations of the five matrix products of
    attention's gradient. The first product computes the scores again.
    """
    sizes = op.sizes
    work = prod(sizes.scores) * (3 * sizes.head + 2 * sizes.value_head)
    return 2 * work // op.block_count


@train_rule("attention_grad")
def attention_gradient(op: AttentionGradOp) -> Rule:
    """
    Returns the sharding rule of the gradient of attention. The same factors are
    parallel as in attention. The gradients of keys and values are sums over the
    queries, and over the query heads of a key head.
    """
    f = AttentionFactors(op)
    return gradient_rule(op, f, [f.y, f.y, f.logsumexp, f.q, f.k, f.v, *f.mask])


@train_rule("placed_attention_grad")
def placed_attention_gradient(op: PlacedAttentionGradOp) -> Rule:
    """
    Returns the sharding rule of the gradient of attention with explicit positions.
    Batch, heads and queries are parallel; the gradients of keys and values are sums
    over queries.
    """
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
    Returns the sharding rule of a gradient of attention; `operands` are the dimensions
    of its operands.
    """
    summed = (f.group, f.rows_of_keys)
    return f.builder.rule(
        operands,
        [f.q, f.k, f.v],
        # Both `dy` and `y dy` are linear in `dy`.
        linear=[(0,)],
        reduced={1: summed, 2: summed},
        flops=_gradient_flops(op),
        recomputed=2 * prod(op.sizes.scores) * op.sizes.head // op.block_count,
    )


@train_rule("merge_attention")
def merge_attention(op: MergeAttentionOp) -> Rule:
    """
    Returns the sharding rule of the merge of two attention results. Batch, heads and
    queries are parallel.
    """
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
    Returns one device's ops for attention: the op with the numbers of local heads (for
    packed operands) and of local blocks in its attributes.
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
    """
    Returns the attention op on a device's operands, with the number of local heads in
    its attributes.
    """
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


@train_rule("paged_attention")
def paged_attention(op: PagedAttentionOp) -> Rule:
    """
    Returns the sharding rule of attention through a table of pages. Pools of pages are
    parallel: a split of the pools also splits the sequences, because a table names
    pages of one pool only. Heads and queries are parallel as in attention without
    pages.
    """
    builder, sizes = RuleBuilder(op), op.sizes
    _, query_heads, queries, head_size = shape_of(op.q)
    pool = builder.factor(sizes.pools)
    batch = pool + builder.factor(sizes.sequences, "replicate")
    key_head = builder.factor(sizes.heads)
    head = key_head + builder.factor(query_heads // sizes.heads)
    row = builder.factor(queries)
    page, place, column, slot, size, out_size = builder.factors(
        (
            *(sizes.pages, sizes.size, sizes.columns, sizes.slots),
            *(head_size, shape_of(op.values)[4]),
        ),
        "replicate",
    )
    return builder.rule(
        [
            (batch, head, row, size),
            (pool, page, key_head, place, size),
            (pool, page, key_head, place, out_size),
            (batch, column),
            (batch, (), row, slot),
        ],
        [(batch, head, row, out_size)],
        flops=op.flops,
    )


@train_rule("split_attention")
def split_attention(op: SplitAttentionOp) -> Rule:
    """
    Returns the sharding rule of attention to parts of the keys. Batch, heads and
    queries are parallel as in attention to all keys, and so are the parts.
    """
    builder, sizes = RuleBuilder(op), op.sizes
    batch = builder.factor(sizes.batch)
    key_head = builder.factor(sizes.key_heads)
    head = key_head + builder.factor(sizes.query_heads // sizes.key_heads)
    row = builder.factor(sizes.queries)
    part = builder.factor(op.split_count)
    inside, size, out_size = builder.factors(
        (sizes.keys // op.split_count, sizes.head, sizes.value_head), "replicate"
    )
    key = part + inside
    mask = (
        [] if op.mask is None else [builder.aligned(op.mask, (batch, head, row, key))]
    )
    rows = (part, batch, head, row)
    return builder.rule(
        [
            (batch, head, row, size),
            (batch, key_head, key, size),
            (batch, key_head, key, out_size),
            *mask,
        ],
        [(*rows, out_size), rows],
        flops=attention_flops(op),
    )


@local_form("train.split_attention")
def split_attention_of_part(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's op for attention to parts of the keys: the op with the number
    of local parts in its attributes.
    """
    op, local = context.op, context.same_op()
    assert isinstance(op, SplitAttentionOp) and isinstance(local, SplitAttentionOp)
    count = op.split_count * local.sizes.keys // op.sizes.keys
    local.properties["splits"] = IntegerAttr(count, i64)
    return [local]
