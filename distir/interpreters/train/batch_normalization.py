"""The statistics and gradients of batch normalisation on arrays."""

from __future__ import annotations

import numpy as np

from distir.dialects.train_ops.batch_normalization import (
    BatchNormGradOp,
    BatchNormInputGradOp,
    BatchNormSumsOp,
    BatchNormVarianceOp,
    GhostBatchNormGradOp,
    GhostBatchNormOp,
    GhostNormOp,
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


def _in_parts(op: GhostNormOp, x: Array) -> Array:
    """Returns an array as [groups, samples of a group, channels, *space]."""
    return x.reshape(op.groups.value.data, -1, *x.shape[1:])


def _of_parts(value: Array, x: Array) -> Array:
    """Returns one number per channel of each part, aligned with the dimensions of `x`."""
    return value.reshape(value.shape[0], 1, -1, *[1] * (x.ndim - 3))


@computes(GhostBatchNormOp)
def ghost_batch_norm(
    op: GhostBatchNormOp, x: Array, scale: Array, bias: Array
) -> tuple[Array, ...]:
    parts = _in_parts(op, x)
    over = (1, *range(3, parts.ndim))
    mean = parts.mean(over)
    centered = parts - _of_parts(mean, parts)
    inverse = _inverse_root((centered * centered).mean(over), op.epsilon.value.data)
    normal = (centered * _of_parts(inverse, parts)).reshape(x.shape)
    y = normal * _per_channel(scale, x) + _per_channel(bias, x)
    return y, mean, inverse


@computes(GhostBatchNormGradOp)
def ghost_batch_norm_gradients(
    op: GhostBatchNormGradOp,
    dy: Array,
    x: Array,
    scale: Array,
    mean: Array,
    inverse: Array,
) -> tuple[Array, ...]:
    parts, incoming = _in_parts(op, x), _in_parts(op, dy)
    over = (1, *range(3, parts.ndim))
    inverse = _of_parts(inverse, parts)
    normal = (parts - _of_parts(mean, parts)) * inverse
    along = incoming.mean(over), (incoming * normal).mean(over)
    means, slopes = (_of_parts(value, parts) for value in along)
    dx = (inverse * (incoming - means - normal * slopes)).reshape(x.shape)
    total = (0, 1, *range(3, parts.ndim))
    dscale, dbias = (incoming * normal).sum(total), incoming.sum(total)
    return dx * _per_channel(scale, x), dscale, dbias
