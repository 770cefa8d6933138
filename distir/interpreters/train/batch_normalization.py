"""The statistics and gradients of batch normalisation on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.interpreter import Interpreter, InterpreterFunctions, impl, register_impls

from distir.dialects.train_ops.batch_normalization import (
    BatchNormInputGradOp,
    BatchNormSumsOp,
    BatchNormVarianceOp,
)
from distir.interpreters.reference import register_reference_implementations
from distir.interpreters.train.arithmetic import Array, widen


def _per_channel(value: Array, x: Array) -> Array:
    """One number per channel, aligned with the dimensions of `x`."""
    return widen(value).reshape(-1, *[1] * (x.ndim - 2))


def _inverse_root(variance: Array, epsilon: float) -> Array:
    return 1 / np.sqrt(variance + variance.dtype.type(epsilon))


@register_reference_implementations
@register_impls
class BatchNormalizationGradients(InterpreterFunctions):
    """The `train.batch_norm_` ops."""

    @impl(BatchNormVarianceOp)
    def variance(
        self, interpreter: Interpreter, op: BatchNormVarianceOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        x = widen(args[0])
        centered = x - _per_channel(args[1], x)
        total = (centered * centered).sum((0, *range(2, x.ndim)))
        return ((total / x.dtype.type(op.count.value.data)).astype(args[1].dtype),)

    @impl(BatchNormSumsOp)
    def sums(
        self, interpreter: Interpreter, op: BatchNormSumsOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        dy, x = map(widen, args[:2])
        mean, variance = (_per_channel(v, x) for v in args[2:])
        normal = (x - mean) * _inverse_root(variance, op.epsilon.value.data)
        over = (0, *range(2, x.ndim))
        dtype = args[2].dtype
        return (dy * normal).sum(over).astype(dtype), dy.sum(over).astype(dtype)

    @impl(BatchNormInputGradOp)
    def input_gradient(
        self, interpreter: Interpreter, op: BatchNormInputGradOp, args: tuple[Any, ...]
    ) -> tuple[Array, ...]:
        dy, x = map(widen, args[:2])
        scale, mean, variance, dscale, dbias = (_per_channel(v, x) for v in args[2:])
        inverse = _inverse_root(variance, op.epsilon.value.data)
        normal = (x - mean) * inverse
        count = x.dtype.type(op.count.value.data)
        dx = scale * inverse * (dy - dbias / count - normal * (dscale / count))
        return (dx.astype(args[1].dtype),)
