"""
Collectives of several tensors of one element type in one message.

A message is a flat tensor in which these tensors lie one after the other. Results that
are contiguous in the flat result are views of the flat result.
"""

import torch
import torch.distributed as dist

from .carriers import carried
from .collectives import Arriving, _packed, join, split


def _flat(tensors, bucket):
    """
    Returns the flat tensor of a message. The tensor lies in the memory `bucket`, where
    some of the message's tensors may already be in place, or in new memory if `bucket`
    is None.
    """
    if bucket is None:
        return torch.cat([x.reshape(-1) for x in tensors])
    places = _pieces(bucket, [x.shape for x in tensors])
    pairs = zip(places, tensors, strict=True)
    missing = [(p, x) for p, x in pairs if p.data_ptr() != x.data_ptr()]
    if missing:
        torch._foreach_copy_([p for p, _ in missing], [x for _, x in missing])
    return bucket


def _fill(rows, parts):
    """
    Writes the tensors `parts[i]`, one after the other, into the flat tensor `rows[i]`.
    """
    places = [
        piece
        for row, own in zip(rows, parts, strict=True)
        for piece in _pieces(row, [x.shape for x in own])
    ]
    torch._foreach_copy_(places, [x for own in parts for x in own])


def _write(whole, parts, dims):
    """
    Writes each process's parts of several tensors to their places in the tensors
    `whole`. `dims` gives, for each tensor, the split dimension and the length of its
    runs (see `collectives`).
    """
    places, pieces = [], []
    for x, own, (dim, run) in zip(whole, zip(*parts, strict=True), dims, strict=True):
        if run is None:
            places += split(x, len(own), dim)
            pieces += own
        else:
            x.copy_(join(list(own), dim, run))
    torch._foreach_copy_(places, pieces)


def _pieces(flat, shapes):
    """
    Returns the tensors of shapes `shapes` that lie one after the other in tensor
    `flat`.
    """
    pieces = flat.split([shape.numel() for shape in shapes])
    return [piece.view(s) for piece, s in zip(pieces, shapes, strict=True)]


def _shared(handle, finish, count, read=None):
    """
    Returns `count` tensors in flight that arrive in one message. The first wait for one
    of them waits for the message and calls `finish`, which returns all of the tensors.
    Until then, `read`, the memory from which the message is sent, is kept alive.
    """
    making, arrived = [(handle, finish, read)], {}

    def part(i):
        if making:  # the message is waited for once, not once for each tensor
            handle, finish, _ = making.pop()
            handle.wait()
            arrived.update(enumerate(finish()))
        return arrived.pop(i)

    return [Arriving([], lambda i=i: part(i)) for i in range(count)]


def _alone(tensors):
    return [Arriving([], lambda x=x: x) for x in tensors]


def start_all_reduce(tensors, group, reduction, bucket=None):
    """
    Starts to reduce tensors, and returns the tensors in flight. `bucket`, if given, is
    the memory of the message, in which some of the tensors may already be in place.
    """
    if group.size == 1:
        return _alone(tensors)
    shapes = [x.shape for x in tensors]
    carrier, op, restored = carried(_flat(tensors, bucket), reduction)
    handle = dist.all_reduce(carrier, op, group.handle, async_op=True)
    return _shared(handle, lambda: _pieces(restored(carrier), shapes), len(tensors))


def start_reduce_scatter(tensors, group, dims, reduction):
    """
    Starts to reduce and scatter tensors, and returns the tensors in flight. `dims`
    gives, for each tensor, the scattered dimension and the length of its runs (see
    `collectives`).
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
    Starts to gather tensors, and returns the tensors in flight. `dims` gives, for each
    tensor, the gathered dimension and the length of its runs (see `collectives`). If
    `into` is given, the results are written to these tensors.
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


def all_reduce(tensors, group, reduction, bucket=None):
    return [x.wait() for x in start_all_reduce(tensors, group, reduction, bucket)]


def reduce_scatter(tensors, group, dims, reduction):
    return [x.wait() for x in start_reduce_scatter(tensors, group, dims, reduction)]


def all_gather(tensors, group, dims, into=None):
    return [x.wait() for x in start_all_gather(tensors, group, dims, into)]
