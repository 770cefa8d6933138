"""Gradients of normalisation layers; statistics are computed again from the input."""

import torch


def layer_norm_grad(dy, x, scale, epsilon, bias=True):
    """The gradients of the input, of the scale and, if asked for, of the bias."""
    shape = scale.shape
    _, mean, inverse = torch.native_layer_norm(x, shape, None, None, epsilon)
    # The last operand only says what a bias looks like.
    found = torch.ops.aten.native_layer_norm_backward(
        dy, x, shape, mean, inverse, scale, scale, [True, True, bias]
    )
    return found if bias else found[:2]


def rms_norm_grad(dy, x, scale, epsilon):
    """The gradients of the input and of the scale."""
    wide_type = torch.float64 if x.dtype == torch.float64 else torch.float32
    columns = tuple(range(x.dim() - scale.dim(), x.dim()))
    wide, gradient = x.to(wide_type), dy.to(wide_type)
    inverse = torch.rsqrt(wide.square().mean(columns, keepdim=True) + epsilon)
    normal = wide * inverse
    scaled = gradient * scale.to(wide_type)
    mean = (scaled * normal).mean(columns, keepdim=True)
    dx = inverse * (scaled - normal * mean)
    dscale = (gradient * normal).flatten(0, -scale.dim() - 1) if columns[0] else None
    dscale = gradient * normal if dscale is None else dscale.sum(0)
    return dx.to(x.dtype), dscale.to(scale.dtype)
