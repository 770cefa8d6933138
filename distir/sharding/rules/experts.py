"""
Sharding rules of grouped matrix products, and the ops of one device for mixtures of
experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.dialects.builtin import TensorType, i1
from xdsl.ir import Operation, SSAValue

from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.experts import (
    CombineOp,
    CombineWeightsGradOp,
    DispatchOp,
    GroupedProductGradOp,
    GroupedProductOp,
    rows_of,
)
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, train_rule
from distir.sharding.rules.indexing import locate
from distir.sharding.rules.local_builder import LocalBuilder


@local_form("train.dispatch", "train.combine", "train.combine_weights_grad")
def own_shards(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for dispatching or combining tokens if the shards of
    experts are split. Slots, the places of tokens in experts, are counted from this
    device's first slot. Choices of experts on other devices become -1 (no choice).
    """
    op = context.op
    of_rows = (
        context.rule.results if isinstance(op, DispatchOp) else context.rule.operands
    )
    (shard,) = of_rows[0][0] or (None,)
    if shard is None or context.parts_of(shard) == 1:
        return [context.same_op()]
    assert isinstance(op, DispatchOp | CombineOp | CombineWeightsGradOp)
    places = rows_of(op.result if isinstance(op, DispatchOp) else op.x)[2]
    builder = LocalBuilder(context)
    x, slots, *others = context.operands
    count = builder.constant(np.array(places, numpy_dtype(element_type(slots))))
    nowhere = builder.constant(np.array(-1, numpy_dtype(element_type(slots))))
    zero = builder.constant(np.array(0, numpy_dtype(element_type(slots))))
    # The quotient of a negative number is rounded differently by different kernels.
    taken = builder.emit(
        "GreaterOrEqual", [slots, zero], TensorType(i1, shape_of(slots))
    )
    number = builder.emit("Div", [slots, count], slots.type)
    number = builder.emit("Where", [taken, number, nowhere], slots.type)
    place = builder.emit("Mod", [slots, count], slots.type)
    held, local = locate(builder, shard, number, from_end=False)
    if local.type != slots.type:
        local = builder.emit("CastLike", [local, slots], slots.type)
    first = builder.emit("Mul", [local, count], slots.type)
    slot = builder.emit("Add", [first, place], slots.type)
    own = builder.emit("Where", [held, slot, nowhere], slots.type)
    return [*builder.ops, context.same_op([x, own, *others])]


@train_rule("grouped_product")
def grouped_product(op: GroupedProductOp) -> Rule:
    """
    Returns the sharding rule of grouped products. Rows and the output's width are
    parallel; the input's width is summed over. A split of shards splits the experts
    with them. If the experts of a shard are split, each device multiplies the rows of
    its own experts, and the results are summed.
    """
    builder = RuleBuilder(op)
    shards, groups, places = rows_of(op.x)
    a, b = shape_of(op.x)[3], shape_of(op.result)[3]
    rows = builder.factors([shards, groups, places])
    expert = builder.factor(shape_of(op.matrices)[0] // shards, "reduction")
    inner, outer = builder.factor(a, "reduction"), builder.factor(b)
    matrix = (outer, inner) if op.transposed is not None else (inner, outer)
    return builder.rule(
        [(*rows, inner), rows, ((*rows[0], *expert), *matrix)],
        [(*rows, outer)],
        linear=[(0,), (2,)],
        flops=_flops(op, groups, shards, places, a * b),
    )


@train_rule("grouped_product_grad")
def grouped_product_gradient(op: GroupedProductGradOp) -> Rule:
    """
    Returns the sharding rule of the gradient of a grouped product for the matrices.
    Shards and both widths are parallel; groups and places are summed over. The experts
    of a shard are whole, because no operand has a dimension of experts.
    """
    builder = RuleBuilder(op)
    shards, groups, places = rows_of(op.x)
    a, b = shape_of(op.x)[3], shape_of(op.dy)[3]
    shard = builder.factor(shards)
    summed = builder.factors([groups, places], "reduction")
    rows = (shard, *summed)
    inner, outer = builder.factors([a, b])
    expert = builder.factor(shape_of(op.matrices)[0] // shards, "replicate")
    matrix = (outer, inner) if op.transposed is not None else (inner, outer)
    return builder.rule(
        [(*rows, inner), rows, (*rows, outer)],
        [((*shard, *expert), *matrix)],
        linear=[(0,), (2,)],
        flops=_flops(op, groups, shards, places, a * b),
    )


def _flops(
    op: GroupedProductOp | GroupedProductGradOp,
    groups: int,
    shards: int,
    places: int,
    area: int,
) -> int:
    """
    Returns the number of floating-point operations for the rows that are in use; `area`
    is the number of elements of a matrix.
    """
    return 2 * prod((groups, op.taken_of(shards, places), area))


@local_form("train.grouped_product")
def own_experts(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for a grouped product whose experts per shard are split.
    Rows of experts on other devices are treated as empty.
    """
    op = context.op
    assert isinstance(op, GroupedProductOp)
    shards = rows_of(op.x)[0]
    experts = shape_of(op.matrices)[0] // shards
    factors = context.rule.operands[2][0]
    expert = factors[-1] if experts > 1 else None
    if expert is None or context.parts_of(expert) == 1:
        return [context.same_op()]
    builder = LocalBuilder(context)
    x, rows, matrices = context.operands
    _, local = locate(builder, expert, rows, from_end=False, elsewhere=-1)
    own: SSAValue = local
    if own.type != rows.type:
        own = builder.emit("CastLike", [own, rows], rows.type)
    return [*builder.ops, context.same_op([x, own, matrices])]
