"""The boxes of a whole tensor that make up a process's part of the tensor."""

from itertools import product
from math import prod
from typing import NamedTuple

import torch

from ..communication import collectives, flattening


class Strided(NamedTuple):
    """
    The position of a box in a flattened part: the offset of its first element, and its
    strides.
    """

    offset: int
    strides: tuple


def boxes(spec, mesh, rank):
    """
    Returns the boxes of a tensor that make up the part of process `rank`: for each box,
    its start in the whole tensor, its start in the part, and its sizes.
    """
    if spec.flattened:
        return _flat_boxes(spec, mesh, rank)
    place = {} if mesh is None else mesh.coordinates()[mesh.ranks.index(rank)]
    dims = []
    for dim, size in enumerate(spec.whole_shape):
        index = torch.arange(size, device="cpu")
        for axis, run in spec.split[dim] if spec.split and mesh is not None else ():
            index = collectives.split(index, mesh.axes[axis], 0, run)[place[axis]]
        dims.append(
            runs(flattening.origins(spec, dim)[index] if spec.padded else index)
        )
    return [tuple(zip(*box, strict=True)) or ((), (), ()) for box in product(*dims)]


def _flat_boxes(spec, mesh, rank):
    """
    Returns the boxes of a whole tensor that make up a process's part of it after
    flattening.
    """
    splits = spec.flattened[1]
    shape = flattening.block_shape(spec.whole_shape, splits)
    begin, end, blocks = flattening.held(spec, mesh, rank)
    strides = tuple(len(blocks) * prod(shape[d + 1 :]) for d in range(len(shape)))
    found = []
    for column, block in enumerate(blocks):
        places = flattening.places(spec.whole_shape, splits, block)
        if spec.padded:
            places = [flattening.origins(spec, d)[own] for d, own in enumerate(places)]
        for first, sizes in _cut(begin, min(end, prod(shape)), shape):
            dims = [
                runs(own[start : start + size])
                for own, start, size in zip(places, first, sizes, strict=True)
            ]
            for box in product(*dims):
                where, within, lengths = zip(*box, strict=True) if box else ((), (), ())
                offset = column - begin * len(blocks)
                for start, more, stride in zip(first, within, strides, strict=True):
                    offset += (start + more) * stride
                found.append((where, Strided(offset, strides), lengths))
    return found


def _cut(begin, end, shape):
    """
    Yields the boxes that cover the row-major positions from `begin` to `end` of a
    tensor of shape `shape`, as starts and sizes.
    """
    if begin >= end:
        return
    if not shape:
        yield (), ()
        return
    row = prod(shape[1:])
    first, last = -(-begin // row), end // row
    if first > last:
        rows = [(last, begin - last * row, end - last * row)]
    else:
        rows = [
            (first - 1, begin - (first - 1) * row, row),
            (last, 0, end - last * row),
        ]
        if first < last:
            yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
    for at, start, stop in rows:
        for inner, sizes in _cut(start, stop, shape[1:]):
            yield (at, *inner), (1, *sizes)


def runs(places):
    """
    Returns the runs of consecutive numbers in the ascending positions `places`: for
    each run, its first position, the index of this position in `places`, and its
    length. Runs of padding are left out.
    """
    breaks = (torch.diff(places) != 1).nonzero().reshape(-1) + 1
    starts = [0, *breaks.tolist()]
    ends = [*breaks.tolist(), len(places)]
    return tuple(
        (int(places[start]), start, end - start)
        for start, end in zip(starts, ends, strict=True)
        if end > start and places[start] >= 0
    )


def box_of(part, own, sizes):
    """
    Returns the elements of a box in `part`, given the box's start `own` in the part and
    its sizes.
    """
    if isinstance(own, Strided):
        return part.as_strided(sizes, own.strides, part.storage_offset() + own.offset)
    for dim, (begin, size) in enumerate(zip(own, sizes, strict=True)):
        part = part.narrow(dim, begin, size)
    return part
