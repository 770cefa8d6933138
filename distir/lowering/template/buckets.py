"""
Collectives of several tensors of one type in one message.

Tensors are laid one behind the other in a flat one, which is sent; the results are views of
the flat result where they are contiguous there.
"""

import torch
import torch.distributed as dist

from .carriers import carried
from .collectives import Arriving, _packed, join, split


def _flat(tensors):
    return torch.cat([x.reshape(-1) for x in tensors])


def _shared(handle, finish, count):
    """Returns a tensor in flight for each of the `count` that one message brings."""
    arrived = []

    def part(i):
        if not arrived:
            arrived.extend(finish())
        return arrived[i]

    return [Arriving([handle], lambda i=i: part(i)) for i in range(count)]


def _pieces(flat, shapes):
    """Returns the tensors of these shapes that a flat one holds."""
    pieces = flat.split([shape.numel() for shape in shapes])
    return [piece.view(s) for piece, s in zip(pieces, shapes, strict=True)]


def _alone(tensors):
    return [Arriving([], lambda x=x: x) for x in tensors]


def start_all_reduce(tensors, group, reduction):
    if group.size == 1:
        return _alone(tensors)
    flat = _flat(tensors)
    carrier, op, restored = carried(flat, reduction)
    handle = dist.all_reduce(carrier, op, group.handle, async_op=True)
    shapes = [x.shape for x in tensors]
    return _shared(handle, lambda: _pieces(restored(carrier), shapes), len(tensors))


def start_reduce_scatter(tensors, group, dims, reduction):
    """
    Starts to reduce and scatter; `dims` has for each tensor the dimension that is
    scattered, and in which runs.
    """
    if group.size == 1:
        return _alone(tensors)
    parts = [split(x, group.size, *dim) for x, dim in zip(tensors, dims, strict=True)]
    shapes = [own[0].shape for own in parts]
    carrier, op, restored = carried(
        torch.stack([_flat(each) for each in zip(*parts, strict=True)]), reduction
    )
    rows = list(carrier.unbind())
    out = torch.empty_like(rows[0])
    handle = dist.reduce_scatter(
        out, group.by_number(rows), op, group.handle, async_op=True
    )
    return _shared(handle, lambda: _pieces(restored(out), shapes), len(tensors))


def start_all_gather(tensors, group, dims):
    """
    Starts to gather; `dims` has for each tensor the dimension that is gathered, and in
    which runs.
    """
    if group.size == 1:
        return _alone(tensors)
    flat = _flat(tensors)
    packed = _packed(flat)
    rows = [torch.empty_like(packed) for _ in range(group.size)]
    handle = dist.all_gather(rows, packed, group.handle, async_op=True)
    shapes = [x.shape for x in tensors]

    def finish():
        by_position = group.by_position(rows)
        parts = [_pieces(row.view(flat.dtype), shapes) for row in by_position]
        return [
            join(list(own), *dim)
            for own, dim in zip(zip(*parts, strict=True), dims, strict=True)
        ]

    return _shared(handle, finish, len(tensors))


def all_reduce(tensors, group, reduction):
    return [x.wait() for x in start_all_reduce(tensors, group, reduction)]


def reduce_scatter(tensors, group, dims, reduction):
    return [x.wait() for x in start_reduce_scatter(tensors, group, dims, reduction)]


def all_gather(tensors, group, dims):
    return [x.wait() for x in start_all_gather(tensors, group, dims)]
