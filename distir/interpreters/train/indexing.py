"""Gradients of look-ups, on arrays, and their costs."""

from __future__ import annotations

import numpy as np

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.indexing import GatherGradOp, ScatterSumOp
from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cost_function,
)
from distir.interpreters.train.arithmetic import Array, computes


@computes(GatherGradOp)
def gather_gradient(op: GatherGradOp, dy: Array, indices: Array, *like: Array) -> Array:
    axis, depth = op.dimension, indices.ndim
    slices = np.moveaxis(dy, range(axis, axis + depth), range(depth))
    out = np.zeros(shape_of(op.ddata), dy.dtype)
    np.add.at(np.moveaxis(out, axis, 0), indices, slices)
    return out


@computes(ScatterSumOp)
def scatter_sum(op: ScatterSumOp, updates: Array, indices: Array) -> Array:
    out = np.zeros(shape_of(op.result), updates.dtype)
    axis, count = op.dimension, op.batch
    if axis is not None:
        where: list[Array] = [*np.ogrid[tuple(map(slice, indices.shape))]]
        where[axis] = indices
        np.add.at(out, tuple(where), updates)
        return out
    # The batch dimensions come first, and each indexes itself.
    grid: list[Array] = [*np.ogrid[tuple(map(slice, indices.shape[:count]))]]
    places = indices.ndim - 1 - count
    batch = [each.reshape(*each.shape, *[1] * places) for each in grid]
    np.add.at(out, (*batch, *np.moveaxis(indices, -1, 0)), updates)
    return out


@cost_function("train.gather_grad", "train.scatter_sum")
def lookup_gradient(context: CostContext) -> Cost:
    """
    Returns the cost of the gradient of a look-up. The op fills its result with zeros,
    then reads and writes the elements that were looked up.
    """
    gradient, indices = context.operand_bytes[:2]
    return context.roofline(moved=3 * gradient + indices + sum(context.result_bytes))
