"""
Attention over a cache whose positions are split over devices: attention to each part of
the keys by itself, and writes of new tokens to the slots of one device.
"""

import torch

from .fused_attention import Attention


def split_attention(query, key, value, mask=None, splits=1, **options):
    """
    Returns attention to each of `splits` equal parts of the keys by itself: the output
    (parts, batch, heads, queries, size), and the logarithms of the sums of exponentials
    (parts, batch, heads, queries). For a query that sees no key of a part, the output
    is 0 and the logarithm the lowest finite number. Operands are (batch, heads, length,
    size).
    """
    masks = [mask] * splits
    if mask is not None and mask.shape[-1] > 1:
        masks = mask.chunk(splits, -1)
    parts = zip(key.chunk(splits, 2), value.chunk(splits, 2), masks, strict=True)
    found = [_part(query, *part, options) for part in parts]
    return tuple(torch.stack(results) for results in zip(*found, strict=True))


def _part(query, key, value, mask, options):
    """Returns attention to one part of the keys, and the logarithms."""
    kernel = Attention(query, key, value, mask, **options)
    out, sums = kernel.forward()
    if kernel.mask is not None:
        blind = (kernel.mask == -torch.inf).all(-1)
        sums = sums.masked_fill(blind, torch.finfo(sums.dtype).min)
        out = out.masked_fill(blind[..., None], 0)
    return out.to(query.dtype), sums


def write_slots(cache, new, first, slots, total, in_place=False):
    """
    Returns `cache` (batch, heads, slots, width), in which token t of `new` (batch,
    heads, tokens, width) for sequence b is written to the slot that has the number
    `(first[b] + t) % total` in `slots`, which is in ascending order. Tokens of other
    slots are left out. With `in_place`, `cache` itself is overwritten. `cache` and
    `new` may both lack the dimension of widths.
    """
    if cache.dtype.is_floating_point and cache.dtype.itemsize == 1:
        # Not all kernels of PyTorch take floats of 8 bits, but their bytes.
        own, rows = cache.view(torch.uint8), new.view(torch.uint8)
        return write_slots(own, rows, first, slots, total, in_place).view(cache.dtype)
    result = cache if in_place else cache.clone()
    if new.shape[2] == 1:
        # One slot of each sequence: the others are not touched.
        wanted = (first % total).unsqueeze(1)
        place = torch.searchsorted(slots, wanted).clamp(max=slots.shape[0] - 1)
        is_held = _spread(slots[place] == wanted, cache)
        place = _spread(place, cache).expand_as(new)
        rows = torch.where(is_held, new, cache.gather(2, place))
        return result.scatter_(2, place, rows)
    tokens = (slots - first.unsqueeze(1)) % total
    is_written = _spread(tokens < new.shape[2], cache)
    place = _spread(tokens.clamp(max=new.shape[2] - 1), cache).expand_as(cache)
    return result.copy_(torch.where(is_written, new.gather(2, place), cache))


def _spread(x, cache):
    """
    Returns `x` (batch, slots) as (batch, 1, slots, 1), or without the last dimension if
    `cache` has no widths.
    """
    x = x.unsqueeze(1)
    return x.unsqueeze(3) if cache.dim() == 4 else x
