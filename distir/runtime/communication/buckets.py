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


def _fill(rows, parts):
    """Writes to each of the flat tensors the tensors that it is to hold."""
    places = [
        piece
        for row, own in zip(rows, parts, strict=True)
        for piece in _pieces(row, [x.shape for x in own])
    ]
    torch._foreach_copy_(places, [x for own in parts for x in own])


def _write(whole, parts, dims):
    """Writes what each process has of some tensors to where it belongs in the whole ones."""
    places, pieces = [], []
    for x, own, (dim, run) in zip(whole, zip(*parts, strict=True), dims, strict=True):
        if run is None:
            places += split(x, len(own), dim)
            pieces += own
        else:
            x.copy_(join(list(own), dim, run))
    torch._foreach_copy_(places, pieces)


def _pieces(flat, shapes):
    """Returns the tensors of these shapes that a flat one holds."""
    pieces = flat.split([shape.numel() for shape in shapes])
    return [piece.view(s) for piece, s in zip(pieces, shapes, strict=True)]


def _shared(handle, finish, count, read=None):
    """
    A tensor on its way for each of `count` that one message brings. `finish` makes all of
    them when the first one is waited for, and is forgotten with what it holds.
    """
    making, arrived = [finish], {}

    def part(i):
        if making:
            arrived.update(enumerate(making.pop()()))
        return arrived.pop(i)

    return [Arriving([handle], lambda i=i: part(i), read) for i in range(count)]


def _alone(tensors):
    return [Arriving([], lambda x=x: x) for x in tensors]


def start_all_reduce(tensors, group, reduction):
    if group.size == 1:
        return _alone(tensors)
    shapes = [x.shape for x in tensors]
    carrier, op, restored = carried(_flat(tensors), reduction)
    handle = dist.all_reduce(carrier, op, group.handle, async_op=True)
    return _shared(handle, lambda: _pieces(restored(carrier), shapes), len(tensors))


def start_reduce_scatter(tensors, group, dims, reduction):
    """
    Starts to reduce and scatter; `dims` has for each tensor the dimension that is
    scattered, and in which runs.
    """
    if group.size == 1:
        return _alone(tensors)
    parts = [
        group.by_number(split(x, group.size, *dim))
        for x, dim in zip(tensors, dims, strict=True)
    ]
    shapes = [own[0].shape for own in parts]
    length = sum(shape.numel() for shape in shapes)
    rows = tensors[0].new_empty((group.size, length))
    _fill(rows, list(zip(*parts, strict=True)))
    carrier, op, restored = carried(rows, reduction)
    out = carrier.new_empty(length)
    handle = dist.reduce_scatter_single(
        out, carrier.view(-1), op, group.handle, async_op=True
    )

    def finish():
        return _pieces(restored(out), shapes)

    return _shared(handle, finish, len(tensors), carrier)


def start_all_gather(tensors, group, dims, into=None):
    """
    `dims`: for each tensor the dimension that is gathered, and in which runs. What comes is
    written to the tensors `into`, if they are given, and is these.
    """
    if group.size == 1 and into is None:
        return _alone(tensors)
    shapes = [x.shape for x in tensors]
    length = sum(shape.numel() for shape in shapes)
    rows = tensors[0].new_empty((group.size, length))
    own = rows[group.number]
    _fill([own], [tensors])
    handle = dist.all_gather_single(
        _packed(rows).view(-1), _packed(own), group.handle, async_op=True
    )

    def finish():
        by_position = group.by_position(list(rows))
        parts = [_pieces(row, shapes) for row in by_position]
        if into is not None:
            _write(into, parts, dims)
            return list(into)
        return [
            join(list(own), *dim)
            for own, dim in zip(zip(*parts, strict=True), dims, strict=True)
        ]

    return _shared(handle, finish, len(tensors))


def all_reduce(tensors, group, reduction):
    return [x.wait() for x in start_all_reduce(tensors, group, reduction)]


def reduce_scatter(tensors, group, dims, reduction):
    return [x.wait() for x in start_reduce_scatter(tensors, group, dims, reduction)]


def all_gather(tensors, group, dims, into=None):
    return [x.wait() for x in start_all_gather(tensors, group, dims, into)]
