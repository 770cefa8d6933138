"""Dropout that drops the same elements however a tensor is split."""

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .. import random_numbers
from . import drawing_kernel

_CHUNK = 1 << 20


def _positions(places, local, shape, splits, coordinates):
    """
    Returns the positions in the whole tensor of elements of a part, given those in the
    part.
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
    """Whether tensors beside this one lie on a GPU, with values, and there is the kernel."""
    has_values = not isinstance(counter, FakeTensor)
    return has_values and counter.is_cuda and drawing_kernel.kept is not None


def kept(local, within, counter, coordinates, key, threshold, shape, splits):
    """
    Yields which elements of a part of a tensor are kept, as (start, end, booleans) of one
    chunk after another of the elements from `within[0]` to `within[1]`, in row-major order:
    those whose random number is at least `threshold`. Numbers depend on key, counter and the
    position in the whole tensor, of that shape, which `splits` (dimension, parts, run)
    divide into parts of shape `local`: this is the part at these coordinates.
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
    Returns the elements of x that are kept, times `scale`, the others zero. If given,
    `mask` is set to which elements are kept.
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
    """Returns the result of `dropout`, and the mask of the elements that are kept."""
    mask = torch.empty(x.shape, dtype=torch.bool, device=x.device)
    return dropout(x, *arguments, mask=mask, **options), mask
