"""Gradients of convolutions and pooling over one to three dimensions of space."""

from itertools import product

import torch
import torch.nn.functional as F


def _flat(margins):
    """Padding as F.pad wants it: the last dimension first."""
    return [n for pair in reversed(margins) for n in pair]


def _is_symmetric(margins):
    return all(before == after for before, after in margins)


def _cropped(padded, margins):
    """Without the padding of space."""
    for dim, (before, after) in enumerate(margins, start=2):
        padded = padded.narrow(dim, before, padded.shape[dim] - before - after)
    return padded


def _padded_shape(shape, margins):
    space = (n + sum(m) for n, m in zip(shape[2:], margins, strict=True))
    return (*shape[:2], *space)


def conv_grad_input(dy, weight, shape, strides, dilations, margins, groups):
    function = getattr(torch.nn.grad, f"conv{len(strides)}d_input")
    if _is_symmetric(margins):
        pads = tuple(before for before, _ in margins)
        return function(shape, weight, dy, strides, pads, dilations, groups)
    padded = _padded_shape(shape, margins)
    dx = function(padded, weight, dy, strides, (0,) * len(strides), dilations, groups)
    return _cropped(dx, margins).contiguous()


def conv_grad_weight(x, dy, shape, strides, dilations, margins, groups):
    function = getattr(torch.nn.grad, f"conv{len(strides)}d_weight")
    if _is_symmetric(margins):
        pads = tuple(before for before, _ in margins)
    else:
        x, pads = F.pad(x, _flat(margins)), (0,) * len(strides)
    return function(x, shape, dy, strides, pads, dilations, groups)


def _reach(shape, kernel, windows, strides, dilations, margins):
    """The padding, with what windows reach beyond it at the end (ceil mode)."""
    return [
        (before, max(after, (n - 1) * s + (k - 1) * d + 1 - before - size))
        for size, k, n, s, d, (before, after) in zip(
            shape[2:], kernel, windows, strides, dilations, margins, strict=True
        )
    ]


def max_pool_grad(dy, x, kernel, strides, dilations, margins):
    margins = _reach(x.shape, kernel, dy.shape[2:], strides, dilations, margins)
    padded = F.pad(x, _flat(margins), value=-torch.inf)
    pool = getattr(F, f"max_pool{len(kernel)}d")
    _, where = pool(padded, kernel, strides, 0, dilations, return_indices=True)
    out = torch.zeros_like(padded).flatten(2)
    out.scatter_add_(2, where.flatten(2), dy.flatten(2))
    return _cropped(out.reshape(padded.shape), margins).contiguous()


def average_pool_grad(dy, shape, counts, kernel, strides, dilations, margins):
    """`counts`: per dimension and window how many places count."""
    windows = dy.shape[2:]
    margins = _reach(shape, kernel, windows, strides, dilations, margins)
    for dim, numbers in enumerate(counts, start=2):
        divisors = torch.tensor(numbers, dtype=dy.dtype, device=dy.device)
        dy = dy / divisors.reshape(-1, *[1] * (dy.dim() - dim - 1))
    out = dy.new_zeros(_padded_shape(shape, margins))
    for tap in product(*map(range, kernel)):
        place = tuple(
            slice(t * d, t * d + s * (n - 1) + 1, s)
            for t, d, s, n in zip(tap, dilations, strides, windows, strict=True)
        )
        out[(..., *place)] += dy
    return _cropped(out, margins).contiguous()
