"""Rules and local forms of the gradients of look-ups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from xdsl.dialects.builtin import TensorType, i1
from xdsl.ir import Operation, SSAValue

from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.indexing import GatherGradOp, ScatterSumOp
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, train_rule
from distir.sharding.rules.indexing import locate
from distir.sharding.rules.local_builder import LocalBuilder


@train_rule("gather_grad")
def gather_gradient(op: GatherGradOp) -> Rule:
    """
    The rule of the gradient of a look-up: look-ups are summed over, so that a split batch
    leaves partial sums. Rows are split as those of `data` are.
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
    The rule of sums at indexed places: the terms are summed over, so that devices that
    have some of it leave partial sums; dimensions that are not indexed are parallel.
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
    The local form: each device adds to the rows that it holds; rows looked up elsewhere
    adds zero to row 0. The device passes `data` only if it has as many rows as the result.
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
    """Returns the values whose local shape is that of the result."""
    wanted = shape_of(context.result_types[0])
    return [value for value in values if shape_of(value.type) == wanted]
