"""The statistics and gradients of batch normalisation on arrays."""

from __future__ import annotations

import numpy as np

from distir.dialects.train_ops.batch_normalization import (
    BatchNormGradOp,
    BatchNormInputGradOp,
    BatchNormSumsOp,
    BatchNormVarianceOp,
)
from distir.interpreters.train.arithmetic import Array, computes


def _per_channel(value: Array, x: Array) -> Array:
    """Returns one number per channel, aligned with the dimensions of `x`."""
    return value.reshape(-1, *[1] * (x.ndim - 2))


def _inverse_root(variance: Array, epsilon: float) -> Array:
    return 1 / np.sqrt(variance + variance.dtype.type(epsilon))


@computes(BatchNormVarianceOp)
def variance(op: BatchNormVarianceOp, x: Array, mean: Array) -> Array:
    centered = x - _per_channel(mean, x)
    total = (centered * centered).sum((0, *range(2, x.ndim)))
    return total / x.dtype.type(op.count.value.data)


@computes(BatchNormSumsOp)
def sums(op: BatchNormSumsOp, dy: Array, x: Array, *values: Array) -> tuple[Array, ...]:
    mean, variance = (_per_channel(v, x) for v in values)
    normal = (x - mean) * _inverse_root(variance, op.epsilon.value.data)
    over = (0, *range(2, x.ndim))
    return (dy * normal).sum(over), dy.sum(over)


@computes(BatchNormGradOp)
def gradients(
    op: BatchNormGradOp, dy: Array, x: Array, *values: Array
) -> tuple[Array, ...]:
    scale, mean, variance = (_per_channel(v, x) for v in values)
    inverse = _inverse_root(variance, op.epsilon.value.data)
    over = (0, *range(2, x.ndim))
    dscale = (dy * ((x - mean) * inverse)).sum(over)
    return dy * (scale * inverse), dscale, dy.sum(over)


@computes(BatchNormInputGradOp)
def input_gradient(
    op: BatchNormInputGradOp, dy: Array, x: Array, *values: Array
) -> Array:
    scale, mean, variance, dscale, dbias = (_per_channel(v, x) for v in values)
    inverse = _inverse_root(variance, op.epsilon.value.data)
    normal = (x - mean) * inverse
    count = x.dtype.type(op.count.value.data)
    return scale * inverse * (dy - dbias / count - normal * (dscale / count))
