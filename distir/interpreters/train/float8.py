"""Products in 8-bit and 4-bit floats, on arrays of such floats, and their costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from distir.dialects.onnx_ops.values import bytes_per_element, numpy_dtype
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.block_floats import (
    BlockLinearOp,
    BlockProductOp,
    BlockRecipe,
    QuantizeBlocksOp,
)
from distir.dialects.train_ops.float8 import (
    FORMATS,
    RANGES,
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


_BIAS = 127
"""The exponent of an E8M0 number is the byte minus this."""


@computes(QuantizeBlocksOp)
def quantize_blocks(
    op: QuantizeBlocksOp, x: Array, tensor_scale: Array | None = None
) -> tuple[Array, Array]:
    return _quantized(x, op.format, op.dimension, op.square is not None, tensor_scale)


@computes(BlockProductOp)
def block_product(
    op: BlockProductOp,
    a: Array,
    b: Array,
    scale_a: Array,
    scale_b: Array,
    *of_tensors: Array,
) -> Array:
    return _product_of_blocks(a, b, scale_a, scale_b, *of_tensors)


@computes(BlockLinearOp)
def block_linear(op: BlockLinearOp, a: Array, b: Array, *kept: Array) -> Array:
    recipe, name = op.format, op.recipe.data
    parts: list[Array] = []
    scales: list[Array] = []
    of_tensors: list[Array] = []
    for x, axis, is_square in (
        (a, a.ndim - 1, False),
        (b, 0, recipe.has_square_weights),
    ):
        of_tensor = scale_of(x, RANGES[name], None) if recipe.has_tensor_scale else None
        part, scale = _quantized(x, recipe, axis, is_square, of_tensor)
        parts.append(part)
        scales.append(scale)
        of_tensors += [] if of_tensor is None else [of_tensor]
    return _product_of_blocks(*parts, *scales, *of_tensors)


def _quantized(
    x: Array, recipe: BlockRecipe, axis: int, square: bool, tensor_scale: Array | None
) -> tuple[Array, Array]:
    """Returns the narrow floats and the scales of `x` in blocks along `axis`."""
    x = x.astype(np.float32)
    shape: list[int] = []
    within: list[int] = []
    for dim, n in enumerate(x.shape):
        if square or dim == axis:
            within.append(len(shape) + 1)
            shape += [n // recipe.size, recipe.size]
        else:
            shape.append(n)
    magnitude = np.abs(x).reshape(shape).max(tuple(within))
    magnitude = np.where(np.isfinite(magnitude), magnitude, np.float32(np.nan))
    needed = magnitude / np.float32(recipe.largest)
    if tensor_scale is None:
        scale = _rounded_up(needed, recipe)
        factor = 1 / scale.astype(np.float32)
    else:
        scale = np.minimum(needed * tensor_scale, recipe.largest_scale)
        scale = scale.astype(numpy_dtype(recipe.scale))
        wide = scale.astype(np.float32)
        nonzero = np.where(wide == 0, np.float32(1), wide)
        # The elements of a block whose scale is too small for its type are lost.
        factor = np.where(wide == 0, np.float32(0), tensor_scale / nonzero)
    scaled = np.clip(x * _spread(factor, x.shape), -recipe.largest, recipe.largest)
    return scaled.astype(numpy_dtype(recipe.element)), scale


def _rounded_up(needed: Array, recipe: BlockRecipe) -> Array:
    """Returns the smallest powers of two that are at least `needed`."""
    fraction, exponent = np.frexp(needed)  # needed = fraction * 2**exponent
    power = exponent - (fraction <= 0.5)
    biased = np.where(needed == 0, 0, np.clip(power + _BIAS, 0, 2 * _BIAS))
    biased = np.where(np.isnan(needed), 255, biased)
    return biased.astype(np.uint8).view(numpy_dtype(recipe.scale))


def _product_of_blocks(
    a: Array, b: Array, scale_a: Array, scale_b: Array, *of_tensors: Array
) -> Array:
    found = _wide(a, scale_a) @ _wide(b, scale_b)
    # The scale of a tensor that has an infinity is 0, and makes the product NaN.
    with np.errstate(divide="ignore", invalid="ignore"):
        for scale in of_tensors:
            found = found * (1 / scale)
    return found


def _wide(x: Array, scale: Array) -> Array:
    """Returns the numbers that blocks stand for."""
    return x.astype(np.float32) * _spread(scale.astype(np.float32), x.shape)


def _spread(scale: Array, shape: tuple[int, ...]) -> Array:
    """Returns the scale of each element of an array with shape `shape`."""
    for dim, (count, n) in enumerate(zip(scale.shape, shape, strict=True)):
        if count != n:
            scale = np.repeat(scale, n // count, dim)
    return scale


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


@cost_function("train.quantize_blocks")
def conversion(context: CostContext) -> Cost:
    """
    Returns the cost of a conversion to blocks. One kernel finds the largest magnitude
    of a block and rounds its elements. The workspace holds the scaled operand in f32.
    """
    op = context.op
    assert isinstance(op, QuantizeBlocksOp)
    elements = context.result_bytes[0] / bytes_per_element(op.format.element)
    return replace(context.roofline(), workspace=round(4 * elements))
