"""ONNX operators that rearrange elements and have no equivalent PyTorch function."""

import torch
import torch.nn.functional as F

from ..devices import here


def reshape(x, shape, allow_zero=False):
    """
    Returns `x` with shape `shape`. A 0 in `shape` keeps the size of the dimension,
    unless `allow_zero`.
    """
    if not allow_zero:
        shape = [x.shape[i] if n == 0 else n for i, n in enumerate(shape)]
    return x.reshape(shape)


def flatten(x, axis):
    """Returns `x` as a matrix whose rows are the dimensions before `axis`."""
    axis %= x.dim() + 1
    rows = x.shape[:axis].numel()
    return x.reshape(rows, x.numel() // rows if rows else x.shape[axis:].numel())


def unsqueeze(x, axes):
    """
    Returns `x` with dimensions of size 1 inserted at `axes`, positions in the result.
    """
    rank = x.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        x = x.unsqueeze(axis)
    return x


def expand(x, shape):
    """
    Returns `x` expanded to the shape that results from broadcasting `x` and `shape`.
    """
    return x.expand(torch.broadcast_shapes(x.shape, tuple(shape)))


def split_evenly(x, count, axis):
    """Returns `count` parts of `x` along `axis`. The last part may be smaller."""
    each = -(-x.shape[axis] // count)
    sizes = [each] * (count - 1)
    return x.split([*sizes, x.shape[axis] - sum(sizes)], axis)


def slice_(x, starts, ends, axes=None, steps=None):
    """
    Returns a slice of `x` along `axes` with the meaning of Python's slices, including
    negative steps.
    """
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = x.shape[axis]
        first, last, step = slice(
            start, None if end < -size and step < 0 else end, step
        ).indices(size)
        if step > 0:
            index = [slice(None)] * x.dim()
            index[axis] = slice(first, last, step)
            x = x[tuple(index)]
        else:
            places = (
                torch.arange(first, last, step, device=here()) if first > last else []
            )
            x = x.index_select(
                axis, torch.as_tensor(places, dtype=torch.int64, device=here())
            )
    return x


def pad(x, pads, axes=None, mode="constant", value=0):
    """
    Returns `x` with elements added before and after each axis. Negative padding removes
    elements.
    """
    rank = x.dim()
    axes = range(rank) if axes is None else [axis % rank for axis in axes]
    count = len(pads) // 2
    for i, axis in enumerate(axes):
        before, after = pads[i], pads[i + count]
        size = x.shape[axis]
        if mode == "constant":
            flat = [0, 0] * (rank - 1 - axis) + [before, after]
            x = F.pad(x, flat, value=value)
            continue
        places = torch.arange(-before, size + after, device=here())
        if mode == "edge":
            places = places.clamp(0, size - 1)
        elif mode == "wrap":
            places = places % size
        elif mode == "reflect":
            period = max(2 * (size - 1), 1)
            places = places % period
            places = torch.minimum(places, period - places) if size > 1 else places * 0
        else:
            raise ValueError(f"Pad has no mode {mode!r}")
        x = x.index_select(axis, places)
    return x


def center_crop_pad(x, shape, axes=None):
    """Returns `x` cropped or padded around its centre to the sizes in `shape`."""
    axes = range(x.dim()) if axes is None else axes
    for axis, size in zip(axes, shape, strict=True):
        have = x.shape[axis]
        if have > size:
            x = x.narrow(axis, (have - size) // 2, size)
        elif have < size:
            before = (size - have) // 2
            behind = [0, 0] * (x.dim() - 1 - axis % x.dim())
            x = F.pad(x, [*behind, before, size - have - before])
    return x


def depth_to_space(x, size):
    """
    Returns `x` with blocks of channels moved to space. In a channel's index, the
    position in the block varies slowest.
    """
    n, c, h, w = x.shape
    x = x.reshape(n, size, size, c // size**2, h, w)
    return x.permute(0, 3, 4, 1, 5, 2).reshape(n, c // size**2, h * size, w * size)


def space_to_depth(x, size):
    """
    Returns `x` with blocks moved from space to channels; the inverse of
    `depth_to_space`.
    """
    n, c, h, w = x.shape
    x = x.reshape(n, c, h // size, size, w // size, size)
    return x.permute(0, 3, 5, 1, 2, 4).reshape(n, c * size**2, h // size, w // size)


def sequence_insert(sequence, x, place):
    """Returns a new sequence with `x` inserted before position `place`."""
    out = list(sequence)
    out.insert(place if place >= 0 else len(out) + place, x)
    return out


def sequence_erase(sequence, place):
    """Returns a new sequence without the element at position `place`."""
    out = list(sequence)
    del out[place]
    return out


def split_to_sequence(x, sizes, axis, keep):
    """
    Returns the parts of `x` with sizes `sizes` along `axis`, as a list. If `sizes` is
    one number, all parts have this size, except that the last may be smaller. Unless
    `keep`, the axis is removed from the parts.
    """
    parts = list(x.split(sizes, axis))
    return parts if keep else [part.squeeze(axis) for part in parts]
