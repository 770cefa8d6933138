"""Products of activations and weights of 8 or 4 bits."""

import torch
import torch.nn.functional as F


def quantized_linear(x, weight, scale):
    """
    Returns `x` times the transposed weights, where row n of the 8-bit `weight` is
    multiplied by `scale[n]`.
    """
    return F.linear(x, weight.to(x.dtype) * scale[:, None])


def group_quantized_linear(x, weight, scale, zero):
    """
    Returns `x` times the transposed weights. `weight` packs two weights of 4 bits into
    each byte. Each group of weights has a scale and a zero point.
    """
    return F.linear(x, dequantize_groups(weight, scale, zero).to(x.dtype))


def dequantize_groups(quantized, scale, zero):
    """
    Returns the numbers that weights of 4 bits stand for, in the type of `scale`.
    `quantized` packs two weights into each byte. Each group of weights has a scale and
    a zero point: a weight q stands for `(q - zero) * scale`.
    """
    pairs = torch.stack((quantized & 15, quantized >> 4), dim=-1)
    groups = pairs.reshape(*scale.shape, -1).to(scale.dtype)
    values = (groups - zero[..., None].to(scale.dtype)) * scale[..., None]
    return values.flatten(-2)
