"""Products in 8-bit floats, on arrays of 8-bit floats, and their costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.float8 import (
    FORMATS,
    Float8LinearOp,
    Float8ProductOp,
    Float8ScaleOp,
    ToFloat8Op,
)
from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cost_function,
)
from distir.interpreters.train.arithmetic import Array, computes

_LEAST = np.float32(1e-12)


@computes(Float8ScaleOp)
def float8_scale(op: Float8ScaleOp, x: Array) -> Array:
    return scale_of(x, op.largest, op.dimension)


@computes(ToFloat8Op)
def to_float8(op: ToFloat8Op, x: Array, scale: Array) -> Array:
    return _rounded(x, scale, op.largest, numpy_dtype(element_type(op.y)))


@computes(Float8ProductOp)
def float8_product(
    op: Float8ProductOp, a: Array, b: Array, scale_a: Array, scale_b: Array
) -> Array:
    return _product(a, b, scale_a, scale_b)


@computes(Float8LinearOp)
def float8_linear(op: Float8LinearOp, a: Array, b: Array) -> Array:
    is_whole = op.scaling.data == "tensor"
    parts: list[Array] = []
    scales: list[Array] = []
    for x, name, axis in zip((a, b), op.formats, (-1, 0), strict=True):
        type_, largest = FORMATS[name]
        scales.append(scale_of(x, largest, None if is_whole else axis))
        parts.append(_rounded(x, scales[-1], largest, numpy_dtype(type_)))
    return _product(*parts, *scales)


def scale_of(x: Array, largest: float, axis: int | None) -> Array:
    """
    Returns the factor that makes the largest magnitude of `x`, or of each of its rows
    along `axis`, equal to `largest`.
    """
    magnitude = np.abs(x.astype(np.float32)).max(axis, keepdims=axis is not None)
    return np.float32(largest) / np.maximum(magnitude, _LEAST)


def _rounded(x: Array, scale: Array, largest: float, dtype: np.dtype) -> Array:
    return np.clip(x.astype(np.float32) * scale, -largest, largest).astype(dtype)


def _product(a: Array, b: Array, scale_a: Array, scale_b: Array) -> Array:
    found = a.astype(np.float32) @ b.astype(np.float32)
    return found * (1 / scale_a) * (1 / scale_b)


@cost_function("train.to_float8")
def rounding(context: CostContext) -> Cost:
    """
    Returns the cost of a rounding to 8-bit floats. The workspace holds the scaled
    operand in f32.
    """
    scaled = 4 * context.result_bytes[0]
    return replace(context.roofline(), workspace=scaled)


@cost_function("train.float8_scale")
def magnitude(context: CostContext) -> Cost:
    """
    Returns the cost of computing a scale. The workspace holds the magnitudes of all
    elements, before their maximum is taken.
    """
    return replace(context.roofline(), workspace=context.operand_bytes[0])
