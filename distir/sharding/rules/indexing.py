"""
Sharding rules of look-ups, their gradients, and scatters, and their local forms: the
ops of one device.

A scatter that adds updates is a sum over its index places, so devices can share these
places. The data must be added only once; the decomposition of a scatter takes care of
this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from xdsl.dialects.builtin import AnyFloat, IntegerType, TensorType, i1, i64
from xdsl.ir import Operation, SSAValue

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.indexing import GatherGradOp, ScatterSumOp
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Kind, Rule
from distir.sharding.rules.builder import (
    ANY,
    Dims,
    RuleBuilder,
    attribute_axis,
    onnx_rule,
    train_rule,
)
from distir.sharding.rules.local_builder import LocalBuilder


def _table_kind(op: OnnxOp) -> Kind:
    """
    Returns the kind of the factor of a looked-up dimension. The kind is a reduction if
    elements can be added: each device looks up the rows that it holds, and the results
    are summed. Otherwise the dimension is whole.
    """
    element = element_type(op.operands[0])
    summable = isinstance(element, AnyFloat) or (
        isinstance(element, IntegerType) and element.width.data > 1
    )
    return "reduction" if summable else "replicate"


@onnx_rule("Gather")
def gather(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of Gather, whose result has the shape `data[:axis] +
    indices + data[axis + 1:]`. The looked-up dimension, such as a vocabulary, is a
    reduction; `masked_lookup` is its local form.
    """
    builder = RuleBuilder(op)
    sizes = shape_of(op.operands[0])
    axis = attribute_axis(op, len(sizes))
    before = builder.factors(sizes[:axis])
    table = builder.factor(sizes[axis], _table_kind(op))
    after = builder.factors(sizes[axis + 1 :])
    indices = builder.factors(shape_of(op.operands[1]))
    return builder.rule(
        [(*before, table, *after), indices],
        [(*before, *indices, *after)],
        linear=[(0,)],
    )


@onnx_rule("GatherElements")
def gather_elements(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of GatherElements. Dimensions that have the same size in
    data and indices are parallel, and so is the dimension `axis` of the indices. The
    looked-up dimension is a reduction.
    """
    builder = RuleBuilder(op)
    sizes, picked = shape_of(op.operands[0]), shape_of(op.operands[1])
    axis = attribute_axis(op, len(sizes))
    result = builder.factors(
        [
            n if i == axis or n == m else 1
            for i, (m, n) in enumerate(zip(sizes, picked, strict=True))
        ]
    )
    table = builder.factor(sizes[axis], _table_kind(op))
    data = (*result[:axis], table, *result[axis + 1 :])
    return builder.rule([data, result], [result], linear=[(0,)])


@local_form("onnx.Gather", "onnx.GatherElements")
def masked_lookup(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for look-ups. A device looks up indices in its own part of
    the table, and returns zero for indices that other devices hold. The sum over the
    devices is the whole look-up.
    """
    builder = LocalBuilder(context)
    sizes = shape_of(context.op.operands[0])
    axis = attribute_axis(builder.op, len(sizes))
    (table,) = context.rule.operands[0][axis] or (None,)
    if table is None or context.parts_of(table) == 1:
        return [context.same_op()]
    data, indices = context.operands
    held, local = locate(builder, table, indices)
    found = builder.finish([data, local])
    builder.ops.append(found[-1])
    trailing = len(sizes) - axis - 1
    if builder.op.name == "onnx.Gather" and trailing:
        rank = len(shape_of(indices))
        axes = builder.shape_constant(range(rank, rank + trailing))
        type_ = TensorType(i1, [*shape_of(indices), *[1] * trailing])
        held = builder.emit("Unsqueeze", [held, axes], type_)
    zero = builder.constant(np.zeros((), numpy_dtype(element_type(data))))
    builder.emit("Where", [held, found[-1].results[0], zero], context.result_types[0])
    return builder.ops


def locate(
    builder: LocalBuilder,
    table: int,
    indices: SSAValue,
    *,
    from_end: bool = True,
    elsewhere: int = 0,
) -> tuple[SSAValue, SSAValue]:
    """
    Returns two values for each index into the split dimension of factor `table`. The
    first is whether this device holds the indexed element. The second is the element's
    position in this device's part (`elsewhere` if another device holds it).

    Negative indices count from the end. Without `from_end`, no device holds them.
    """
    context = builder.context
    sizes = shape_of(indices)
    index_type, mask_type = TensorType(i64, sizes), TensorType(i1, sizes)

    def number(value: int) -> SSAValue:
        return builder.constant(np.array(value, dtype=np.int64))

    def integer(name: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return builder.emit(name, [a, b], index_type)

    def mask(name: str, a: SSAValue, b: SSAValue) -> SSAValue:
        return builder.emit(name, [a, b], mask_type)

    if element_type(indices) != i64:
        indices = builder.emit("Cast", [indices], index_type, {"to": 7})
    left = context.rule.factors[table].size
    index = indices
    if from_end:
        negative = mask("Less", indices, number(0))
        wrapped = integer("Add", indices, number(left))
        index = builder.emit("Where", [negative, wrapped, indices], index_type)
    shards = context.assignment[table]
    if all(shard.run is None for shard in shards):
        size = left // context.parts_of(table)
        mine = builder.coordinate(context.axes_of(table))
        offset = builder.emit("Mul", [mine, number(size)], TensorType(i64, []))
        index = integer("Sub", index, offset)
        held = mask(
            "And",
            mask("GreaterOrEqual", index, number(0)),
            mask("Less", index, number(size)),
        )
    else:
        held = mask("GreaterOrEqual", index, number(0))
        for shard in shards:
            parts = context.mesh.size(shard.axis)
            run = left // parts if shard.run is None else shard.run
            left //= parts
            block = integer("Div", index, number(run))
            owner = integer("Mod", block, number(parts))
            here = mask("Equal", owner, builder.coordinate([shard.axis]))
            held = mask("And", held, here)
            round_ = integer("Div", block, number(parts))
            start = integer("Mul", round_, number(run))
            index = integer("Add", start, integer("Mod", index, number(run)))
    local = builder.emit("Where", [held, index, number(elsewhere)], index_type)
    return held, local


@onnx_rule("GatherND")
def gather_nd(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of GatherND. Batch dimensions and whole slices are
    parallel; indexed dimensions are whole.
    """
    builder = RuleBuilder(op)
    sizes, picked = shape_of(op.operands[0]), shape_of(op.operands[1])
    count = op.attribute("batch_dims")
    depth = picked[-1]
    batch = builder.factors(sizes[:count])
    indexed = builder.factors(sizes[count : count + depth], "replicate")
    rest = builder.factors(sizes[count + depth :])
    places = builder.factors(picked[count:-1])
    return builder.rule(
        [(*batch, *indexed, *rest), (*batch, *places, ())],
        [(*batch, *places, *rest)],
        linear=[(0,)],
        reductions=ANY,
    )


@onnx_rule("TensorScatter")
def tensor_scatter(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of TensorScatter, which updates a cache. All dimensions
    except the written one are parallel.
    """
    builder = RuleBuilder(op)
    sizes, written = shape_of(op.operands[0]), shape_of(op.operands[1])
    axis = attribute_axis(op, len(sizes))
    cache = builder.whole_along(sizes, {axis})
    update = (
        *cache[:axis],
        builder.factor(written[axis], "replicate"),
        *cache[axis + 1 :],
    )
    return builder.rule([cache, update, (cache[0],)], [cache], linear=[(0, 1)])


@onnx_rule("OneHot")
def one_hot(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of OneHot. The dimensions of the indices are parallel; the
    new dimension is whole.
    """
    builder = RuleBuilder(op)
    indices = builder.factors(shape_of(op.operands[0]))
    axis = attribute_axis(op, len(indices) + 1)
    return builder.rule([indices], [(*indices[:axis], (), *indices[axis:])])


@onnx_rule("Trilu")
def triangle(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of Trilu. The two dimensions of the matrix are whole.
    """
    builder = RuleBuilder(op)
    sizes = shape_of(op.operands[0])
    dims = builder.whole_along(sizes, range(len(sizes) - 2, len(sizes)))
    return builder.rule([dims], [dims], linear=[(0,)])


def _place_kind(op: OnnxOp) -> Kind:
    """
    Returns the kind of the factors of index places: a reduction if updates are added,
    else the kind of factors that stay whole.
    """
    return "reduction" if op.attribute("reduction") == "add" else "replicate"


def _rule(
    op: OnnxOp,
    builder: RuleBuilder,
    data: Dims,
    where: Dims,
    updates: Dims,
    places: Dims,
) -> Rule:
    """
    Returns the sharding rule of a scatter. The dimensions of its index places have the
    factors `places`.
    """
    adds = op.attribute("reduction") == "add"
    linear = [(0, 2)] if adds or op.attribute("reduction") == "none" else []
    return builder.rule(
        [data, where, updates],
        [data],
        linear=linear,
        decomposed=places if adds else (),
    )


@onnx_rule("ScatterElements")
def scatter_elements(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of ScatterElements. Dimensions that have the same size in
    data and indices are parallel, except the axis.
    """
    builder = RuleBuilder(op)
    sizes, places = shape_of(op.operands[0]), shape_of(op.operands[1])
    axis = attribute_axis(op, len(sizes))
    data = tuple(
        builder.factor(m, "parallel" if m == n and i != axis else "replicate")
        for i, (m, n) in enumerate(zip(sizes, places, strict=True))
    )
    kinds: list[Kind] = ["replicate"] * len(sizes)
    kinds[axis] = _place_kind(op)
    updates = tuple(
        dim if m == n and i != axis else builder.factor(n, kinds[i])
        for i, (m, n, dim) in enumerate(zip(sizes, places, data, strict=True))
    )
    return _rule(op, builder, data, updates, updates, updates[axis : axis + 1])


@onnx_rule("ScatterND")
def scatter_nd(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of ScatterND. Indexed dimensions are whole; the dimensions
    of slices are parallel.
    """
    builder = RuleBuilder(op)
    sizes, places = shape_of(op.operands[0]), shape_of(op.operands[1])
    depth = places[-1]
    indexed = builder.factors(sizes[:depth], "replicate")
    rest = builder.factors(sizes[depth:])
    where = builder.factors(places[:-1], _place_kind(op))
    data = (*indexed, *rest)
    return _rule(op, builder, data, (*where, ()), (*where, *rest), where)


@train_rule("gather_grad")
def gather_gradient(op: GatherGradOp) -> Rule:
    """
    Returns the sharding rule of the gradient of a look-up. The gradient is a sum over
    the look-ups, so a split batch leaves partial sums. Rows of the result are split
    like the rows of the operand `data`.
    """
    builder = RuleBuilder(op)
    sizes, axis = shape_of(op.ddata), op.dimension
    before, after = builder.factors(sizes[:axis]), builder.factors(sizes[axis + 1 :])
    rows = () if op.data is None else builder.factor(sizes[axis])
    places = builder.factors(shape_of(op.indices), "reduction")
    data = (*before, rows, *after)
    rule = builder.rule(
        [(*before, *places, *after), places, data], [data], linear=[(0,)]
    )
    return rule if op.data is None else replace(rule, unread=frozenset((2,)))


@train_rule("scatter_sum")
def scatter_sum(op: ScatterSumOp) -> Rule:
    """
    Returns the sharding rule of sums at indexed places. Devices that each have some of
    the terms leave partial sums. Dimensions that are not indexed are parallel.
    """
    builder = RuleBuilder(op)
    sizes, places = shape_of(op.result), shape_of(op.indices)
    axis = op.dimension
    if axis is not None:
        shared = tuple(
            builder.factor(n if n == m and i != axis else 1)
            for i, (n, m) in enumerate(zip(sizes, places, strict=True))
        )
        updates = tuple(
            dim
            if n == m and i != axis
            else builder.factor(m, "reduction" if i == axis else "replicate")
            for i, (n, m, dim) in enumerate(zip(sizes, places, shared, strict=True))
        )
        return builder.rule([updates, updates], [shared], linear=[(0,)])
    count, depth = op.batch, places[-1]
    batch = builder.factors(sizes[:count])
    rest = builder.factors(sizes[count + depth :])
    summed = builder.factors(places[count:-1], "reduction")
    return builder.rule(
        [(*batch, *summed, *rest), (*batch, *summed, ())],
        [(*batch, *((),) * depth, *rest)],
        linear=[(0,)],
    )


@local_form("train.gather_grad")
def rows_held(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for the gradient of a look-up. Each device adds to the rows
    that it holds; gradients of other devices' rows add zero to row 0. The operand
    `data` is passed on only if it has the local shape of the result.
    """
    op = context.op
    assert isinstance(op, GatherGradOp)
    (rows,) = context.rule.results[0][op.dimension] or (None,)
    if rows is None or context.parts_of(rows) == 1:
        dy, indices, *like = context.operands
        return [context.same_op([dy, indices, *_alike(context, like)])]
    builder = LocalBuilder(context)
    dy, indices, *like = context.operands
    held, local = locate(builder, rows, indices)
    depth = len(shape_of(indices))
    trailing = len(shape_of(op.ddata)) - op.dimension - 1
    if trailing:
        axes = builder.shape_constant(range(depth, depth + trailing))
        type_ = TensorType(i1, [*shape_of(indices), *[1] * trailing])
        held = builder.emit("Unsqueeze", [held, axes], type_)
    zero = builder.constant(np.zeros((), numpy_dtype(element_type(dy))))
    masked = builder.emit("Where", [held, dy, zero], dy.type)
    return [*builder.ops, context.same_op([masked, local, *_alike(context, like)])]


def _alike(context: LocalContext, values: Sequence[SSAValue]) -> list[SSAValue]:
    """Returns the `values` that have the local shape of the first result."""
    wanted = shape_of(context.result_types[0])
    return [value for value in values if shape_of(value.type) == wanted]
