"""Gradients of convolutions and pooling over one to three spatial dimensions."""

from itertools import product

import torch
import torch.nn.functional as F


def _flat(margins):
    """
    Returns the padding `margins` in the order of `F.pad`: the last dimension first.
    """
    return [n for pair in reversed(margins) for n in pair]


def _is_symmetric(margins):
    return all(before == after for before, after in margins)


def _cropped(padded, margins):
    """Returns a tensor without the padding of its spatial dimensions."""
    for dim, (before, after) in enumerate(margins, start=2):
        padded = padded.narrow(dim, before, padded.shape[dim] - before - after)
    return padded


def _padded_shape(shape, margins):
    space = (n + sum(m) for n, m in zip(shape[2:], margins, strict=True))
    return (*shape[:2], *space)


def conv_grad(x, weight, dy, strides, dilations, margins, groups):
    """Returns the gradients of the input and the weight."""
    padded, pads = x, [before for before, _ in margins]
    if not _is_symmetric(margins):
        padded, pads = F.pad(x, _flat(margins)), [0] * len(strides)
    windows = (strides, pads, dilations, groups)
    dx, dweight = _backward(padded, weight, dy, *windows, [True, True, False])[:2]
    return dx if padded is x else _cropped(dx, margins).contiguous(), dweight


def conv_grad_input(dy, weight, shape, strides, dilations, margins, groups):
    pads = [before for before, _ in margins]
    padded = shape if _is_symmetric(margins) else _padded_shape(shape, margins)
    # Of the input, only the shape is needed.
    x = dy.new_empty(1).expand(padded)
    windows = (strides, pads if padded == shape else [0] * len(pads), dilations, groups)
    dx = _backward(x, weight, dy, *windows, [True, False, False])[0]
    return dx if padded == shape else _cropped(dx, margins).contiguous()


def conv_grad_weight(x, dy, shape, strides, dilations, margins, groups):
    pads = [before for before, _ in margins]
    if not _is_symmetric(margins):
        x, pads = F.pad(x, _flat(margins)), [0] * len(strides)
    weight = dy.new_empty(1).expand(shape)
    windows = (strides, pads, dilations, groups)
    return _backward(x, weight, dy, *windows, [False, True, False])[1]


def _backward(x, weight, dy, strides, pads, dilations, groups, wanted):
    """
    Returns the gradients of input, weight and bias if their entry of `wanted` is true,
    and None instead of each other gradient.
    """
    return torch.ops.aten.convolution_backward(
        *(dy, x, weight, None, strides, pads, dilations),
        *(False, [0] * len(strides), groups, wanted),
    )


def _reach(shape, kernel, windows, strides, dilations, margins):
    """
    Returns the padding, enlarged at the end if windows cover elements beyond the
    padding (ceil mode).
    """
    return [
        (before, max(after, (n - 1) * s + (k - 1) * d + 1 - before - size))
        for size, k, n, s, d, (before, after) in zip(
            shape[2:], kernel, windows, strides, dilations, margins, strict=True
        )
    ]


def _fits(pads, kernel):
    """
    Whether PyTorch's function accepts the padding `pads`: at most half of the kernel.
    """
    return all(2 * pad <= size for pad, size in zip(pads, kernel, strict=True))


def max_pool_grad(dy, x, kernel, strides, dilations, margins):
    pads = [before for before, _ in margins]
    if len(kernel) == 2 and _is_symmetric(margins) and _fits(pads, kernel):
        windows = (kernel, strides, pads, dilations)
        for is_ceil in (False, True):
            found = F.max_pool2d(x, *windows, is_ceil, return_indices=True)
            if found[0].shape == dy.shape:
                return torch.ops.aten.max_pool2d_with_indices_backward(
                    dy, x, *windows, is_ceil, found[1]
                )
    margins = _reach(x.shape, kernel, dy.shape[2:], strides, dilations, margins)
    padded = F.pad(x, _flat(margins), value=-torch.inf)
    pool = getattr(F, f"max_pool{len(kernel)}d")
    _, where = pool(padded, kernel, strides, 0, dilations, return_indices=True)
    out = torch.zeros_like(padded).flatten(2)
    out.scatter_add_(2, where.flatten(2), dy.flatten(2))
    return _cropped(out.reshape(padded.shape), margins).contiguous()


def average_pool_grad(dy, shape, counts, kernel, strides, dilations, margins):
    """
    Returns the gradient of average pooling. `counts` gives, for each dimension and
    window, the number of counted elements.
    """
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
