"""Dropout that drops the same elements, however a tensor is split over processes."""

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .. import random_numbers
from . import drawing_kernel

_CHUNK = 1 << 20


def _positions(places, local, shape, splits, coordinates):
    """
    Converts `places`, positions in a part of a tensor, to positions in the whole
    tensor.
    """
    found, stride = 0, 1
    for dim in reversed(range(len(local))):
        index, places = places % local[dim], places // local[dim]
        for (of, parts, run), place in reversed(
            list(zip(splits, coordinates, strict=True))
        ):
            if of == dim:
                index = (index // run * parts + place) * run + index % run
        found = found + index * stride
        stride *= shape[dim]
    return found


def _takes_kernel(counter):
    """
    Whether the Triton kernel can draw the random numbers: the kernel exists, and
    `counter` is on a GPU and has a value.
    """
    has_values = not isinstance(counter, FakeTensor)
    return has_values and counter.is_cuda and drawing_kernel.kept is not None


def kept(local, within, counter, coordinates, key, threshold, shape, splits):
    """
    Yields the elements of a part of a tensor that dropout keeps, in chunks (start, end,
    booleans).

    The chunks cover the elements from `within[0]` to `within[1]` in row-major order. An
    element is kept if its random number is at least `threshold`. The number depends on
    `key`, `counter` and the position in the whole tensor of shape `shape`. `splits`
    (dimension, parts, run) divide the whole tensor into parts of shape `local`, and
    `coordinates` select the part.
    """
    first, last = within
    if _takes_kernel(counter):
        given = local, within, counter, coordinates, key, threshold, shape, splits
        keep = drawing_kernel.kept(*given)
        if keep is not None:
            yield first, last, keep
            return
    key = random_numbers.threefry(key, *random_numbers.halves(counter))
    for start in range(first, last, _CHUNK):
        end = min(start + _CHUNK, last)
        where = torch.arange(start, end, device=counter.device)
        if splits:
            where = _positions(where, local, shape, splits, coordinates)
        word, _ = random_numbers.threefry(key, *random_numbers.halves(where))
        yield start, end, word >= threshold


def dropout(
    x, counter, *coordinates, key, threshold, scale, shape=(), splits=(), mask=None
):
    """
    Returns `x` with the kept elements multiplied by `scale` and all other elements set
    to 0. If `mask` is given, it is overwritten by booleans that are true for kept
    elements.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    flat, values = out.view(-1), x.reshape(-1)
    drawn = kept(
        *(x.shape, (0, x.numel())), counter, coordinates, key, threshold, shape, splits
    )
    for start, end, keep in drawn:
        flat[start:end] = torch.where(keep, values[start:end] * scale, 0)
        if mask is not None:
            mask.view(-1)[start:end] = keep
    return out


def dropout_and_mask(x, *arguments, **options):
    """
    Returns the result of `dropout`, and a mask that is true for the kept elements.
    """
    mask = torch.empty(x.shape, dtype=torch.bool, device=x.device)
    return dropout(x, *arguments, mask=mask, **options), mask
