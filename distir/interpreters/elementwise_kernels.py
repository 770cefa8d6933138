"""
NumPy kernels of elementwise and quantisation operators, for values at which
`onnx.reference` overflows or loses NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import element_type, numpy_dtype
from distir.interpreters.kernels import kernel

Array = npt.NDArray[Any]


@kernel("onnx.Sign")
def sign(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Computes signs. The sign of NaN is 0, as in PyTorch, and therefore in generated
    packages.
    """
    (x,) = inputs
    return [((x > 0).astype(np.int8) - (x < 0).astype(np.int8)).astype(x.dtype)]


@kernel("onnx.OneHot")
def one_hot(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Computes a one-hot encoding by selecting one of two values. `onnx.reference` adds
    multiples of both values instead, so it fails if a value is infinite.
    """
    indices, depth, values = inputs
    count = int(depth.reshape(-1)[0])
    places = indices.astype(np.int64)
    inside = (places >= -count) & (places < count)
    places = np.where(inside, places % max(count, 1), -1)
    axis = op.attribute("axis") % (indices.ndim + 1)
    shape = [1] * (indices.ndim + 1)
    shape[axis] = count
    is_hot = np.expand_dims(places, axis) == np.arange(count).reshape(shape)
    return [np.where(is_hot, values[1], values[0]).astype(values.dtype)]


@kernel("onnx.Shrink")
def shrink(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Computes a Shrink in floats of at least 32 bits, because `onnx.reference` treats NaN
    and rounds integers differently.
    """
    (x,) = inputs
    bias, limit = op.attribute("bias"), op.attribute("lambd")
    wide = x.astype(np.promote_types(x.dtype, np.float32))
    found = np.where(wide < -limit, wide + bias, np.where(wide > limit, wide - bias, 0))
    return [found.astype(x.dtype)]


@kernel("onnx.ThresholdedRelu")
def thresholded_relu(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Computes a thresholded ReLU, because `onnx.reference` turns NaN into 0. In PyTorch,
    NaN stays NaN.
    """
    (x,) = inputs
    wide = x.astype(np.promote_types(x.dtype, np.float32))
    return [np.where(wide <= op.attribute("alpha"), 0, wide).astype(x.dtype)]


@kernel("onnx.InstanceNormalization")
def instance_normalization(op: OnnxOp, inputs: Sequence[Array]) -> list[Array]:
    """
    Computes an instance norm, because `onnx.reference` rounds the means of 16-bit
    floats to 16 bits.
    """
    kind = np.promote_types(inputs[0].dtype, np.float32)
    x, scale, bias = (a.astype(kind) for a in inputs)
    space = tuple(range(2, x.ndim))
    x = x - x.mean(space, keepdims=True)
    variance = np.square(x).mean(space, keepdims=True)
    shape = (-1, *[1] * len(space))
    x = x / np.sqrt(variance + op.attribute("epsilon"))
    return [(x * scale.reshape(shape) + bias.reshape(shape)).astype(inputs[0].dtype)]


def _along(parameter: Array, x: Array, op: OnnxOp) -> Array:
    """
    Returns `parameter`, a scale or zero point, in a shape that broadcasts with `x`.
    """
    if parameter.size == 1 and parameter.ndim <= 1:
        return parameter.reshape(())
    axis, block = op.attribute("axis") % x.ndim, op.attribute("block_size")
    if block:
        return np.repeat(parameter, block, axis).take(range(x.shape[axis]), axis)
    shape = [1] * x.ndim
    shape[axis] = -1
    return parameter.reshape(shape)


def makes_integers(op: OnnxOp, inputs: Sequence[Any]) -> bool:
    """
    Whether the elements of a QuantizeLinear's result have one of NumPy's own integer
    types. NumPy's integer types have at least 8 bits.
    """
    zero: Array | None = inputs[2] if len(inputs) > 2 else None
    kind = zero.dtype if zero is not None else _target(op)
    return kind.kind in "iu"


@kernel("onnx.QuantizeLinear")
def quantize(op: OnnxOp, inputs: Sequence[Any]) -> list[Array]:
    """
    Computes a QuantizeLinear to integers. `onnx.reference` converts numbers to integers
    before it clips them, so large numbers overflow. Results in 8-bit floats are left to
    `onnx.reference`.
    """
    x, scale = inputs[:2]
    zero: Array | None = inputs[2] if len(inputs) > 2 else None
    kind = zero.dtype if zero is not None else _target(op)
    precision = op.attribute("precision")
    wide = numpy_dtype(element_type(precision)) if precision else x.dtype
    with np.errstate(all="ignore"):
        quotient = x.astype(wide) / _along(scale, x, op).astype(wide)
        found = np.rint(quotient.astype(np.float64))
    if zero is not None:
        found = found + _along(zero, x, op).astype(np.float64)
    limits = np.iinfo(kind)
    return [np.clip(found, limits.min, limits.max).astype(kind)]


def _target(op: OnnxOp) -> np.dtype[Any]:
    given = op.attribute("output_dtype")
    return numpy_dtype(element_type(given)) if given else np.dtype(np.uint8)
