"""The gradient of cumulative products."""

import torch


def cumprod_grad(dy, x, axis, exclusive=False, reverse=False):
    if reverse:
        dy, x = dy.flip(axis), x.flip(axis)
    if exclusive:  # the product that ends before an element is that of the one before
        first, rest = dy.tensor_split([1], axis)
        dy = torch.cat([rest, torch.zeros_like(first)], axis)
    dx = torch.ops.aten.cumprod_backward(dy, x, axis, x.cumprod(axis))
    return dx.flip(axis) if reverse else dx
