"""Products of narrow floats in blocks, on arrays of narrow floats, and their costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from distir.dialects.onnx_ops.values import bytes_per_element, numpy_dtype
from distir.dialects.train_ops.block_floats import (
    BlockLinearOp,
    BlockProductOp,
    BlockRecipe,
    QuantizeBlocksOp,
)
from distir.dialects.train_ops.float8 import RANGES
from distir.interpreters.simulator.costs.op_costs import (
    Cost,
    CostContext,
    cost_function,
)
from distir.interpreters.train.arithmetic import Array, computes
from distir.interpreters.train.float8 import scale_of

_BIAS = 127
"""The exponent of an E8M0 number is the byte minus this."""


@computes(QuantizeBlocksOp)
def quantize(
    op: QuantizeBlocksOp, x: Array, tensor_scale: Array | None = None
) -> tuple[Array, Array]:
    return _quantized(x, op.format, op.dimension, op.square is not None, tensor_scale)


@computes(BlockProductOp)
def product(
    op: BlockProductOp,
    a: Array,
    b: Array,
    scale_a: Array,
    scale_b: Array,
    *of_tensors: Array,
) -> Array:
    return _product(a, b, scale_a, scale_b, *of_tensors)


@computes(BlockLinearOp)
def linear(op: BlockLinearOp, a: Array, b: Array, *kept: Array) -> Array:
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
    return _product(*parts, *scales, *of_tensors)


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


def _product(
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


@cost_function("train.quantize_blocks")
def rounding(context: CostContext) -> Cost:
    """
    Returns the cost of a conversion to blocks. One kernel finds the largest magnitude
    of a block and rounds its elements. The workspace holds the scaled operand in f32.
    """
    op = context.op
    assert isinstance(op, QuantizeBlocksOp)
    elements = context.result_bytes[0] / bytes_per_element(op.format.element)
    return replace(context.roofline(), workspace=round(4 * elements))
