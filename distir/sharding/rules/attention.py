"""Rules and local forms of fused attention and rotary position embedding."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.ir import Operation

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Dim, Rule
from distir.sharding.rules.builder import Dims, RuleBuilder, onnx_rule
from distir.sharding.rules.local_builder import LocalBuilder


@onnx_rule("Attention")
def attention(op: OnnxOp) -> Rule:
    """
    The rule of attention: batch and heads are parallel. Query heads are `[key heads,
    group]`: the queries of a group share a key head, so splitting `group` needs the keys
    whole. Queries are parallel too unless a causal mask or window counts their positions.
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
    The local form of attention: on packed operands, the attributes that count heads count
    local ones.
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
    The rule of rotary embedding: batch, heads and positions are parallel. With position ids
    the caches are looked up, so they are whole; without them the caches have the batch and
    positions of the input.
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
    The local form of rotary embedding: on packed operands, the attribute that counts heads
    counts local ones.
    """
    builder = LocalBuilder(context)
    heads = builder.op.attribute("num_heads", 0)
    if not heads:
        return [context.same_op()]
    before, after = shape_of(context.op.operands[0]), shape_of(context.operands[0])
    axis = 2 if len(before) == 3 else 1
    return builder.finish(attributes={"num_heads": heads * after[axis] // before[axis]})
