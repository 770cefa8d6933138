"""Products with weights of 8 or 4 bits, on NumPy arrays."""

from __future__ import annotations

import numpy as np

from distir.dialects.train_ops.quantized_weights import (
    GroupQuantizedLinearOp,
    QuantizedLinearOp,
)
from distir.interpreters.train.arithmetic import Array, computes


@computes(QuantizedLinearOp)
def quantized_linear(
    op: QuantizedLinearOp, x: Array, weight: Array, scale: Array
) -> Array:
    return _product(x, weight.astype(np.float32) * _wide(scale)[:, None])


@computes(GroupQuantizedLinearOp)
def group_quantized_linear(
    op: GroupQuantizedLinearOp, x: Array, weight: Array, scale: Array, zero: Array
) -> Array:
    pairs = np.stack((weight & 15, weight >> 4), axis=-1)
    groups = pairs.reshape(*scale.shape, -1).astype(np.float32)
    values = (groups - zero[..., None].astype(np.float32)) * _wide(scale)[..., None]
    return _product(x, values.reshape(weight.shape[0], -1))


def _wide(x: Array) -> Array:
    """Returns a copy of an array whose floats have at least 32 bits."""
    return x.astype(np.float64 if x.dtype == np.float64 else np.float32)


def _product(x: Array, weights: Array) -> Array:
    return (_wide(x) @ weights.T).astype(x.dtype)
