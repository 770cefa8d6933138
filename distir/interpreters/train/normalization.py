"""Normalisation layers that keep their statistics, and their gradients, on arrays."""

from __future__ import annotations

import numpy as np

from distir.dialects.train_ops.normalization import (
    LayerNormGradOp,
    LayerNormOp,
    NormalizingOp,
    RmsNormGradOp,
    RmsNormOp,
)
from distir.interpreters.train.arithmetic import Array, computes


def _mean(x: Array, axis: int) -> Array:
    """Returns the mean over the dimensions from `axis` on, which remain with size 1."""
    return x.mean(tuple(range(axis, x.ndim)), keepdims=True)


def _inverse_root(op: NormalizingOp, square: Array) -> Array:
    epsilon = square.dtype.type(op.epsilon.value.data)
    return 1 / np.sqrt(square + epsilon)


@computes(LayerNormOp)
def layer_norm(
    op: LayerNormOp, x: Array, scale: Array, bias: Array | None = None
) -> tuple[Array, ...]:
    mean = _mean(x, op.dimension)
    centered = x - mean
    inverse = _inverse_root(op, _mean(centered * centered, op.dimension))
    y = centered * inverse * scale
    return (y if bias is None else y + bias), mean, inverse


@computes(RmsNormOp)
def rms_norm(op: RmsNormOp, x: Array, scale: Array) -> tuple[Array, ...]:
    inverse = _inverse_root(op, _mean(x * x, op.dimension))
    return x * inverse * scale, inverse


@computes(LayerNormGradOp)
def layer_norm_gradient(
    op: LayerNormGradOp, dy: Array, x: Array, scale: Array, mean: Array, inverse: Array
) -> tuple[Array, ...]:
    axis = op.dimension
    rows = tuple(range(axis))
    n = (x - mean) * inverse
    g = dy * scale
    dx = inverse * (g - _mean(g, axis) - n * _mean(g * n, axis))
    dbias = () if op.dbias is None else (dy.sum(rows),)
    return dx, (dy * n).sum(rows), *dbias


@computes(RmsNormGradOp)
def rms_norm_gradient(
    op: RmsNormGradOp, dy: Array, x: Array, scale: Array, inverse: Array
) -> tuple[Array, ...]:
    axis = op.dimension
    n = x * inverse
    g = dy * scale
    dx = inverse * (g - n * _mean(g * n, axis))
    return dx, (dy * n).sum(tuple(range(axis)))
