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
    size = scale.numel()
    wide = x.reshape(-1, size).to(wide_type)
    gradient = dy.reshape(-1, size).to(wide_type)
    weights = scale.reshape(size).to(wide_type)
    inverse = wide.square().mean(1, keepdim=True).add_(epsilon).rsqrt_()
    normal = wide * inverse
    each = gradient * normal
    # Of the products of normal and its gradient.
    mean = torch.mv(each, weights).div_(size)[:, None]
    dx = (gradient * weights).addcmul_(normal, mean, value=-1).mul_(inverse)
    dscale = each.sum(0).reshape(scale.shape)
    return dx.reshape(x.shape).to(x.dtype), dscale.to(scale.dtype)
