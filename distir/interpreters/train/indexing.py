"""Gradients of look-ups on arrays."""

from __future__ import annotations

import numpy as np

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.indexing import GatherGradOp
from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cost_function,
    op_class,
)
from distir.interpreters.train.arithmetic import Array, computes


@computes(GatherGradOp)
def gather_gradient(op: GatherGradOp, dy: Array, indices: Array, *like: Array) -> Array:
    axis, depth = op.dimension, indices.ndim
    slices = np.moveaxis(dy, range(axis, axis + depth), range(depth))
    out = np.zeros(shape_of(op.ddata), dy.dtype)
    np.add.at(np.moveaxis(out, axis, 0), indices, slices)
    return out


@cost_function("train.gather_grad")
def lookup_gradient(context: CostContext) -> Cost:
    """
    The cost of the gradient of a look-up: it fills its result with zeros, then reads and
    writes the elements looked up.
    """
    gradient, indices = context.operand_bytes[:2]
    return context.roofline(moved=3 * gradient + indices + sum(context.result_bytes))


op_class("gather", "train.gather_grad")
