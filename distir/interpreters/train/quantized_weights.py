"""Products with weights of 8 or 4 bits, and rows of such numbers, on NumPy arrays."""

from __future__ import annotations

import numpy as np
from xdsl.ir import Attribute

from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.quantized_rows import (
    DequantizeGroupsOp,
    DequantizeRowsOp,
    QuantizeRowsOp,
)
from distir.dialects.train_ops.quantized_weights import (
    EIGHT_BITS,
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
    return _product(x, _of_groups(weight, scale, zero))


def _of_groups(packed: Array, scale: Array, zero: Array) -> Array:
    """Returns the numbers [..., k] for which groups of 4-bit weights stand."""
    pairs = np.stack((packed & 15, packed >> 4), axis=-1)
    groups = pairs.reshape(*scale.shape, -1).astype(np.float32)
    values = (groups - zero[..., None].astype(np.float32)) * _wide(scale)[..., None]
    return values.reshape(*scale.shape[:-1], -1)


def quantized_rows(x: Array, element: Attribute) -> tuple[Array, Array]:
    """
    Returns `x` [..., k] in the 8-bit type `element`, and the scales of its rows [...],
    in the type of `x`, as `train.quantize_rows` computes them.
    """
    [largest] = [most for type_, most in EIGHT_BITS.values() if type_ == element]
    exact = x.astype(np.float32)
    scale = (np.abs(exact).max(-1) / np.float32(largest)).astype(x.dtype)
    scale = np.where(scale > 0, scale, 1).astype(x.dtype)
    numbers = exact / scale.astype(np.float32)[..., None]
    numbers = np.clip(numbers, -largest, largest)
    dtype = numpy_dtype(element)
    if np.issubdtype(dtype, np.integer):
        numbers = np.rint(numbers)
    return numbers.astype(dtype), scale


@computes(QuantizeRowsOp)
def quantize(op: QuantizeRowsOp, x: Array) -> tuple[Array, Array]:
    rows = x.astype(numpy_dtype(element_type(op.x)))
    return quantized_rows(rows, element_type(op.quantized))


@computes(DequantizeRowsOp)
def dequantize(op: DequantizeRowsOp, quantized: Array, scale: Array) -> Array:
    wide = quantized.astype(np.float32) * scale.astype(np.float32)[..., None]
    return wide.astype(numpy_dtype(element_type(op.x)))


@computes(DequantizeGroupsOp)
def dequantize_groups(
    op: DequantizeGroupsOp, packed: Array, scale: Array, zero: Array
) -> Array:
    return _of_groups(packed, scale, zero).astype(numpy_dtype(element_type(op.x)))


def _wide(x: Array) -> Array:
    """Returns a copy of an array whose floats have at least 32 bits."""
    return x.astype(np.float64 if x.dtype == np.float64 else np.float32)


def _product(x: Array, weights: Array) -> Array:
    return (_wide(x) @ weights.T).astype(x.dtype)
