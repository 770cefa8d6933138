"""
Pooling with ONNX's options: uneven padding, dilation, indices, and any element type.
"""

import torch

from ..devices import here


def _out_size(size, kernel, stride, dilation, before, after, ceil):
    reach = dilation * (kernel - 1) + 1
    free = size + before + after - reach
    # ONNX rounds toward 0: a window exists if less than a stride is missing.
    count = (-(-free // stride) if ceil or free < 0 else free // stride) + 1
    if ceil and (count - 1) * stride >= size + before:
        count -= 1  # a window must not begin behind the data
    return max(count, 0)


def _windows(x, kernel, strides, dilations, before, counts, fill):
    """
    Returns all windows of the spatial dimensions, [n, c, *positions, elements of a
    window]. Elements outside of the input are `fill`.
    """
    spatial = len(kernel)
    for i in reversed(range(spatial)):
        dim = x.dim() - (spatial - i) if i == spatial - 1 else 2 + i
        dim = 2 + i
        start = (
            torch.arange(counts[i], device=here()).unsqueeze(1) * strides[i] - before[i]
        )
        places = (
            start + torch.arange(kernel[i], device=here()) * dilations[i]
        ).reshape(-1)
        size = x.shape[dim]
        inside = (places >= 0) & (places < size)
        x = x.index_select(dim, places.clamp(0, size - 1))
        shape = [1] * x.dim()
        shape[dim] = -1
        x = torch.where(inside.reshape(shape), x, fill)
        x = x.unflatten(dim, (counts[i], kernel[i]))
        x = x.movedim(dim + 1, -1)
    # The window dimensions were moved to the end, the last one first.
    order = [*range(2 + spatial), *reversed(range(2 + spatial, 2 + 2 * spatial))]
    return x.permute(order).flatten(2 + spatial)


def _counts(x, kernel, strides, dilations, before, after, ceil):
    return [
        _out_size(*sizes, ceil)
        for sizes in zip(
            x.shape[2:], kernel, strides, dilations, before, after, strict=True
        )
    ]


def max_pool(
    x,
    kernel,
    strides,
    dilations,
    before,
    after,
    ceil=False,
    indices=False,
    columns_first=False,
):
    """
    Returns the maximum of each window and, with `indices`, also its position in the
    flattened input. `columns_first` numbers positions in column-major order.
    """
    counts = _counts(x, kernel, strides, dilations, before, after, ceil)
    least = -torch.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    windows = _windows(x, kernel, strides, dilations, before, counts, least)
    if not indices:
        return windows.amax(-1)
    size = x.shape[2:].numel()
    spatial = torch.arange(size, device=here())
    if columns_first:
        spatial = spatial.reshape(*reversed(x.shape[2:])).permute(
            *reversed(range(x.dim() - 2))
        )
    places = torch.arange(x.shape[0] * x.shape[1], device=here()).unsqueeze(1) * size
    places = (places + spatial.reshape(-1)).reshape(x.shape)
    where = _windows(places, kernel, strides, dilations, before, counts, -1)
    # Padding may be as large as the data, but must never be chosen.
    windows = torch.where(where < 0, least, windows)
    is_largest = (windows == windows.amax(-1, keepdim=True)) | (windows != windows)
    best = (is_largest & (where >= 0)).to(torch.uint8).argmax(-1, keepdim=True)
    return windows.gather(-1, best).squeeze(-1), where.gather(-1, best).squeeze(-1)


def mean_pool(
    x, kernel, strides, dilations, before, after, ceil=False, count_padding=False
):
    counts = _counts(x, kernel, strides, dilations, before, after, ceil)
    windows = _windows(x, kernel, strides, dilations, before, counts, 0)
    valid = torch.ones(1, 1, *x.shape[2:], dtype=x.dtype, device=here())
    margin = before
    if count_padding:
        padded = zip(x.shape[2:], before, after, strict=True)
        valid = torch.ones(
            1, 1, *(n + b + a for n, b, a in padded), dtype=x.dtype, device=here()
        )
        margin = [0] * len(kernel)
    number = _windows(valid, kernel, strides, dilations, margin, counts, 0).sum(-1)
    return windows.sum(-1) / number


def lp_pool(x, kernel, strides, dilations, before, after, ceil=False, p=2):
    counts = _counts(x, kernel, strides, dilations, before, after, ceil)
    windows = _windows(x, kernel, strides, dilations, before, counts, 0)
    return windows.abs().pow(p).sum(-1).pow(1 / p)


def max_unpool(x, indices, kernel, strides, pads, shape=None):
    """
    Returns a tensor with each value of `x` at its position in `indices`, from which
    `max_pool` took it, and 0 elsewhere.
    """
    n = len(kernel)
    inferred = [
        (size - 1) * stride - (pads[i] + pads[i + n]) + k
        for i, (size, stride, k) in enumerate(
            zip(x.shape[2:], strides, kernel, strict=True)
        )
    ]
    natural = [*x.shape[:2], *inferred]
    flat = torch.zeros(torch.Size(natural).numel(), dtype=x.dtype, device=here())
    out = flat.scatter(0, indices.reshape(-1), x.reshape(-1)).reshape(natural)
    if shape is None or list(shape) == natural:
        return out
    whole = torch.zeros(shape, dtype=x.dtype, device=here())
    whole[tuple(slice(size) for size in natural)] = out
    return whole


def col2im(x, image, block, dilations, pads, strides):
    """
    Returns images to which each column of `x` is added at the position of its block.
    """
    n = len(image)
    size = torch.Size(block).numel()
    batch, channels = x.shape[0], x.shape[1] // size
    padded = [image[i] + pads[i] + pads[i + n] for i in range(n)]
    rows = torch.arange(torch.Size(padded).numel(), device=here()).reshape(
        1, 1, *padded
    )
    counts = [
        (padded[i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1
        for i in range(n)
    ]
    places = _windows(rows, block, strides, dilations, [0] * n, counts, -1)
    places = places.reshape(-1, size).transpose(0, 1).reshape(-1)
    values = x.reshape(batch, channels, -1)
    out = torch.zeros(
        batch, channels, torch.Size(padded).numel(), dtype=x.dtype, device=here()
    )
    out = out.index_add(2, places, values).reshape(batch, channels, *padded)
    return out[(..., *(slice(pads[i], pads[i] + image[i]) for i in range(n)))]
