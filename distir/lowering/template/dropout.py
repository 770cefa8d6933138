"""Dropout that draws the same elements however a tensor is split."""

import torch

from . import random_numbers

_CHUNK = 1 << 20


def _positions(places, local, shape, splits, coordinates):
    """The positions in the whole tensor of elements of a part, given those in the part."""
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


def dropout(x, counter, *coordinates, key, threshold, scale, shape=(), splits=()):
    """
    The elements of x whose random number is at least `threshold`, times `scale`, the
    others zero. Numbers depend on key, counter and the position in the whole tensor, of
    that shape, which `splits` (dimension, parts, run) cut into parts: this one is the part
    at these coordinates.
    """
    key = random_numbers.threefry(key, *random_numbers.halves(counter))
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    flat, values = out.view(-1), x.reshape(-1)
    for start in range(0, len(values), _CHUNK):
        end = min(start + _CHUNK, len(values))
        where = torch.arange(start, end, device=x.device)
        if splits:
            where = _positions(where, x.shape, shape, splits, coordinates)
        word, _ = random_numbers.threefry(key, *random_numbers.halves(where))
        chosen = values[start:end] * scale
        flat[start:end] = torch.where(word >= threshold, chosen, 0)
    return out
