"""Conversions to and from rows of 8-bit numbers."""

import torch


def quantize_rows(x, dtype):
    """
    Returns `x` in the 8-bit type `dtype`, and the scale of each row of its last
    dimension. The largest magnitude of a row becomes the largest number of `dtype`. The
    scale of a row of zeros is 1.
    """
    is_float = dtype.is_floating_point
    largest = torch.finfo(dtype).max if is_float else torch.iinfo(dtype).max
    wide = x.to(torch.float32)
    scale = (wide.abs().amax(-1) / largest).to(x.dtype)
    scale = scale.where(scale > 0, 1)
    numbers = wide / scale.to(torch.float32).unsqueeze(-1)
    numbers = numbers.clamp(-largest, largest)
    return (numbers if is_float else numbers.round()).to(dtype), scale


def dequantize_rows(quantized, scale):
    """Returns the rows `quantized` times their scales, in the type of `scale`."""
    wide = quantized.to(torch.float32) * scale.to(torch.float32).unsqueeze(-1)
    return wide.to(scale.dtype)
