"""
Sharding rules of reductions along dimensions, and their local forms: the ops of one
device.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.dialects.builtin import AnyFloat, IntegerType
from xdsl.ir import Operation

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import element_type, shape_of
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Kind, Rule
from distir.sharding.rules.builder import (
    RuleBuilder,
    attribute_axis,
    constant_axes,
    onnx_rule,
)
from distir.sharding.rules.local_builder import LocalBuilder


def _reduced_axes(op: OnnxOp) -> frozenset[int] | None:
    """Returns the reduced axes, or None if they are not constant."""
    rank = len(shape_of(op.operands[0]))
    axes = [] if op.input(1) is None else constant_axes(op, 1, rank)
    if axes is None:
        return None
    if not axes:
        return (
            frozenset()
            if op.attribute("noop_with_empty_axes")
            else frozenset(range(rank))
        )
    return frozenset(axes)


def _reduction(
    op: OnnxOp, kind: Kind, reduction: str = "sum", linear: bool = False
) -> Rule:
    axes = _reduced_axes(op)
    if axes is None:
        return Rule.replicated(op)
    builder = RuleBuilder(op)
    dims = tuple(
        builder.factor(size, kind if axis in axes else "parallel", reduction)
        for axis, size in enumerate(shape_of(op.operands[0]))
    )
    keep = bool(op.attribute("keepdims"))
    result = tuple(
        () if axis in axes else dim
        for axis, dim in enumerate(dims)
        if keep or axis not in axes
    )
    return builder.rule(
        [dims],
        [result],
        linear=[(0,)] if linear else [],
        reductions=frozenset({reduction}),
    )


@onnx_rule("ReduceSum")
def reduce_sum(op: OnnxOp) -> Rule:
    """Returns the sharding rule of ReduceSum. It leaves partial sums, and is linear."""
    return _reduction(op, "reduction", linear=True)


@onnx_rule("ReduceL1", "ReduceSumSquare")
def reduce_sum_of(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of sums of a function of each element, such as its square.
    These ops leave partial sums, but are not linear.
    """
    return _reduction(op, "reduction")


@onnx_rule("ReduceMean")
def reduce_mean(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of ReduceMean. The mean is the sum of the devices' means,
    each divided by the number of devices (`reduce_mean_local`). A mean of integers
    rounds, so its dimension stays whole.
    """
    if not isinstance(element_type(op.operands[0]), AnyFloat):
        return _reduction(op, "replicate")
    return _reduction(op, "reduction", linear=True)


@onnx_rule("ReduceMax", "ReduceMin")
def reduce_extremum(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of ReduceMax and ReduceMin, which leave partial maxima or
    minima. For booleans the reduced dimensions are whole.
    """
    # Collectives reduce numbers; the extremum of booleans needs the dimension whole.
    boolean = element_type(op.operands[0]) == IntegerType(1)
    kind = "replicate" if boolean else "reduction"
    reduction = "max" if op.name == "onnx.ReduceMax" else "min"
    return _reduction(op, kind, reduction, linear=not boolean)


@onnx_rule("ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceProd")
def reduce_whole(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of reductions that cannot be computed as a sum over parts.
    The reduced dimensions are whole.
    """
    return _reduction(op, "replicate")


@local_form("onnx.ReduceMean")
def reduce_mean_local(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for ReduceMean: the local mean divided by the number of
    parts of the reduced dimensions.
    """
    rule = context.rule
    parts = prod(
        context.parts_of(f)
        for f in context.assignment
        if rule.factors[f].kind == "reduction"
    )
    if parts == 1:
        return [context.same_op()]
    builder = LocalBuilder(context)
    mean = context.same_op()
    builder.ops.append(mean)
    dtype = numpy_dtype(element_type(context.op.operands[0]))
    scale = builder.constant(np.array(parts, dtype=dtype))
    builder.emit("Div", [mean.results[0], scale], context.result_types[0])
    return builder.ops


@onnx_rule("ArgMax", "ArgMin", "TopK")
def positions_of_extremes(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of ArgMax, ArgMin and TopK. The searched dimension is
    whole.
    """
    builder = RuleBuilder(op)
    sizes = shape_of(op.operands[0])
    axis = attribute_axis(op, len(sizes))
    dims = builder.whole_along(sizes, {axis})
    keeps = op.name == "onnx.TopK" or bool(op.attribute("keepdims"))
    middle = ((),) if keeps else ()
    result = (*dims[:axis], *middle, *dims[axis + 1 :])
    return builder.rule([dims], [result, result])


@onnx_rule("CumSum", "CumProd")
def cumulate(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of CumSum and CumProd. The cumulated dimension is whole.
    CumSum is linear.
    """
    builder = RuleBuilder(op)
    sizes = shape_of(op.operands[0])
    axes = constant_axes(op, 1, len(sizes))
    if axes is None:
        return Rule.replicated(op)
    dims = builder.whole_along(sizes, set(axes))
    linear = [(0,)] if op.name == "onnx.CumSum" else []
    return builder.rule([dims], [dims], linear=linear)
