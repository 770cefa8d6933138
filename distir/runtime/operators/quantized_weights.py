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
    each byte. Each group of weights has a scale and a zero point: a weight is `(q -
    zero) * scale`.
    """
    pairs = torch.stack((weight & 15, weight >> 4), dim=-1)
    groups = pairs.reshape(*scale.shape, -1).to(x.dtype)
    values = (groups - zero[..., None].to(x.dtype)) * scale[..., None]
    return F.linear(x, values.reshape(weight.shape[0], -1))
