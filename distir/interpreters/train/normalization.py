"""The gradients of normalisation layers on arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from distir.dialects.train_ops.normalization import (
    LayerNormGradOp,
    NormGradOp,
    RmsNormGradOp,
)
from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cost_function,
    op_class,
)
from distir.interpreters.train.arithmetic import Array, computes


def _mean(x: Array, axis: int) -> Array:
    """Over the dimensions from `axis` on, which stay with size 1."""
    return x.mean(tuple(range(axis, x.ndim)), keepdims=True)


def _inverse_root(op: NormGradOp, square: Array) -> Array:
    epsilon = square.dtype.type(op.epsilon.value.data)
    return 1 / np.sqrt(square + epsilon)


@computes(LayerNormGradOp)
def layer_norm(
    op: LayerNormGradOp, dy: Array, x: Array, scale: Array
) -> tuple[Array, ...]:
    axis = op.dimension
    rows = tuple(range(axis))
    centered = x - _mean(x, axis)
    inverse = _inverse_root(op, _mean(centered * centered, axis))
    n = centered * inverse
    g = dy * scale
    dx = inverse * (g - _mean(g, axis) - n * _mean(g * n, axis))
    dbias = () if op.dbias is None else (dy.sum(rows),)
    return dx, (dy * n).sum(rows), *dbias


@computes(RmsNormGradOp)
def rms_norm(op: RmsNormGradOp, dy: Array, x: Array, scale: Array) -> tuple[Array, ...]:
    axis = op.dimension
    inverse = _inverse_root(op, _mean(x * x, axis))
    n = x * inverse
    g = dy * scale
    dx = inverse * (g - n * _mean(g * n, axis))
    return dx, (dy * n).sum(tuple(range(axis)))


@cost_function("train.layer_norm_grad")
def layer_norm_gradient(context: CostContext) -> Cost:
    """The kernel takes statistics from a forward that runs again, beside its result."""
    (_, x, _) = context.operand_bytes
    cost = context.roofline(moved=context.bytes + 2 * x)
    return replace(cost, workspace=x)


op_class("normalization", "train.layer_norm_grad", "train.rms_norm_grad")
