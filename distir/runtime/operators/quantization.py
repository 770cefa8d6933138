"""Integer and quantised operators of ONNX."""

import torch
import torch.nn.functional as F

from .numeric import to_float4, to_float8


def integer_matmul(a, b):
    """Returns the exact product of integer matrices, in int64."""
    return a.to(torch.int64) @ b.to(torch.int64)


def _per_row(zero, rank):
    """
    Returns the zero points, or scales, of a matrix's rows as a column. A single value
    is returned unchanged.
    """
    return zero if zero.dim() == 0 or zero.numel() == 1 else zero.reshape(-1, 1)


def matmul_integer(a, b, a_zero=None, b_zero=None):
    a, b = a.to(torch.int64), b.to(torch.int64)
    if a_zero is not None:
        a = a - _per_row(a_zero.to(torch.int64), a.dim())
    if b_zero is not None:
        b = b - b_zero.to(torch.int64)
    return (a @ b).to(torch.int32)


def convolve_integer(x, weight, x_zero=None, weight_zero=None, convolve=F.conv2d):
    """
    Returns a convolution of integers in float64, which is exact if sums stay below
    2**53.
    """
    x, weight = x.to(torch.float64), weight.to(torch.float64)
    if x_zero is not None:
        x = x - x_zero.to(torch.float64)
    if weight_zero is not None:
        zero = weight_zero.to(torch.float64)
        weight = weight - zero.reshape(-1, *[1] * (weight.dim() - 1))
    return convolve(x, weight)


def _along(parameter, x, axis, block):
    """
    Returns a scale or zero point in a shape that broadcasts to `x`: per tensor, per
    element of `axis`, or per block of `block` elements along `axis`.
    """
    if parameter.numel() == 1 and parameter.dim() <= 1:
        return parameter.reshape(())
    if block:
        spread = parameter.repeat_interleave(block, axis)
        return spread.narrow(axis, 0, x.shape[axis])
    shape = [1] * x.dim()
    shape[axis] = -1
    return parameter.reshape(shape)


def quantize(
    x, scale, zero, dtype, axis=1, block=0, saturate=True, limits=None, precision=None
):
    """
    Returns `round(x / scale) + zero`, saturated to the range of `dtype`, or to `limits`
    if given.
    """
    precision = precision or x.dtype
    scaled = x.to(precision) / _along(scale, x, axis, block).to(precision)
    if dtype == torch.float32:
        return to_float4(scaled)
    if dtype.is_floating_point:
        return to_float8(scaled, dtype, saturate)
    least, largest = limits or (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    rounded = scaled.to(torch.float64).round()
    if zero is not None:
        rounded = rounded + _along(zero.to(torch.int64), x, axis, block)
    return rounded.clamp(least, largest).to(torch.int64).to(dtype)


def dequantize(x, scale, zero, dtype, axis=1, block=0):
    """Returns `(x - zero) * scale` in type `dtype`."""
    if x.dtype.is_floating_point:
        values = x.to(torch.float32)
        if zero is not None:
            values = values - _along(zero.to(torch.float32), x, axis, block)
    else:
        values = x.to(torch.int64)
        if zero is not None:
            values = values - _along(zero.to(torch.int64), x, axis, block)
        values = values.to(torch.float32)
    return (values * _along(scale, x, axis, block)).to(dtype)


def dynamic_quantize(x):
    """
    Returns `x` quantised to uint8, with the scale and the zero point that fit its
    range.
    """
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    scale = (high - low) / 255
    zero = torch.where(scale == 0, 0, ((0 - low) / scale).round()).clamp(0, 255)
    values = (x / scale).round() + zero
    values = torch.where(scale == 0, zero, values)
    return values.clamp(0, 255).to(torch.uint8), scale, zero.to(torch.uint8)


def q_linear_matmul(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero):
    wide = torch.float64
    left = a.to(wide) - _per_row(a_zero.to(wide), a.dim())
    right = b.to(wide) - b_zero.to(wide)
    scale = _per_row(a_scale.to(wide), a.dim()) * b_scale.to(wide) / y_scale.to(wide)
    limits = torch.iinfo(y_zero.dtype)
    out = ((left @ right) * scale).round() + y_zero.to(wide)
    return out.clamp(limits.min, limits.max).to(y_zero.dtype)


def q_linear_convolve(
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias, convolve
):
    wide = torch.float64
    per_channel = (-1, *[1] * (x.dim() - 2))
    out = convolve_integer(x, w, x_zero, w_zero, convolve)
    if bias is not None:
        out = out + bias.to(wide).reshape(per_channel)
    scale = x_scale.to(wide) * w_scale.to(wide).reshape(per_channel) / y_scale.to(wide)
    limits = torch.iinfo(y_zero.dtype)
    out = (out * scale).round() + y_zero.to(wide)
    return out.clamp(limits.min, limits.max).to(y_zero.dtype)
