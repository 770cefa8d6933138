"""
The sends between devices that bring a value to another mesh, where it may be split
differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import prod

import numpy as np

from distir.dialects.dist import Layout, Shard
from distir.errors import DistIRError
from distir.sharding.layout import local_shape, shard_indices
from distir.sharding.mesh import Mesh

Interval = tuple[int, int]
"""
An interval of indices along a dimension: the first index, and the index after the last.
"""

Box = tuple[Interval, ...]
"""One interval for each dimension."""


@dataclass(frozen=True)
class SentPiece:
    """
    A piece of a value that one device sends to another device. The piece is the box
    `taken` of the sender's part and becomes the box `placed` of the receiver's part.

    If the value is partial on the sender's mesh, all pieces with the same `term` form
    one term of the receiver's part. The receiver's part is the sum (maximum, minimum)
    of its terms.
    """

    sender: int
    receiver: int
    taken: Box
    placed: Box
    term: int = 0

    @property
    def elements(self) -> int:
        """The number of elements in this piece."""
        return prod(stop - start for start, stop in self.taken)


Rounds = Sequence[Sequence[SentPiece]]
"""
Pieces in the order in which they are sent. Each device takes part in at most one send
of a round.
"""


def keeps_coordinates(
    before: Layout, source: Mesh, after: Layout, target: Mesh
) -> bool:
    """
    Whether each device of `source` already holds the elements that the device of
    `target` at the same coordinates needs.
    """
    return source.axes == target.axes and replace(before, mesh=after.mesh) == after


def check_send(before: Layout, source: Mesh, after: Layout, target: Mesh) -> None:
    """
    Raises DistIRError if a send is not supported. A send between meshes with the same
    axes must keep the layout. A send to another mesh must not change the reduction of a
    partial value. Unless the reduction is a sum, the layout `after` must not need more
    terms than the layout `before` has.
    """
    if source.axes == target.axes and not keeps_coordinates(
        before, source, after, target
    ):
        raise DistIRError(
            f"a send between meshes with the same axes keeps the layout: expected "
            f"{replace(before, mesh=after.mesh)}, got {after}"
        )
    terms, wanted = _terms(before, source), _terms(after, target)
    reductions = {reduction for _, reduction in (*before.partial, *after.partial)}
    if len(reductions) > 1 or (wanted > terms and reductions != {"sum"}):
        raise DistIRError(
            f"a send cannot make the terms of {after} of those of {before}; reduce the "
            f"value before it is sent"
        )


def plan_send(
    shape: Sequence[int], before: Layout, source: Mesh, after: Layout, target: Mesh
) -> Rounds:
    """
    Returns the pieces that bring a tensor of the given shape from layout `before` on
    mesh `source` to layout `after` on mesh `target`.

    Each device receives every element of its part once, from a device that holds it.
    Devices that hold the same elements take turns as senders. The terms of a partial
    value are distributed to the devices that need a term; a device without a term holds
    zeros. Raises DistIRError if `check_send` refuses the send.
    """
    if keeps_coordinates(before, source, after, target):
        whole = tuple((0, size) for size in local_shape(shape, before, source))
        pairs = zip(source.devices, target.devices, strict=True)
        return _rounds([SentPiece(s, r, whole, whole) for s, r in pairs])
    check_send(before, source, after, target)
    terms, wanted = _terms(before, source), _terms(after, target)
    holders: dict[tuple[object, int], list[int]] = {}
    for device, at in zip(source.devices, source.coordinates, strict=True):
        key = _place(before, at), _term(before, source, at)
        holders.setdefault(key, []).append(device)
    segments = [
        _segments(size, have, source, want, target)
        for size, have, want in zip(
            shape,
            before.full_dims(len(shape)),
            after.full_dims(len(shape)),
            strict=True,
        )
    ]
    pieces: list[SentPiece] = []
    served: dict[tuple[object, int], int] = {}
    for device, at in zip(target.devices, target.coordinates, strict=True):
        term, place = _term(after, target, at), _place(after, at)
        turn = served[place, term] = served.get((place, term), -1) + 1
        grid = product(
            *(
                by_place[own]
                for by_place, own in zip(
                    segments, _by_dim(after, at, len(shape)), strict=True
                )
            )
        )
        for each in grid:
            held = tuple(c for segment in each for c in segment.place)
            for own in range(term, terms, wanted):
                having = holders[held, own]
                sender = device if device in having else having[turn % len(having)]
                taken = tuple(segment.taken for segment in each)
                placed = tuple(segment.placed for segment in each)
                pieces.append(SentPiece(sender, device, taken, placed, own))
    return _rounds(pieces)


@dataclass(frozen=True)
class _Segment:
    """
    An interval of one dimension that one sender holds contiguously. `place` has the
    sender's coordinates on the axes that split the dimension. `taken` is the interval
    in the sender's part, and `placed` the interval in the receiver's part.
    """

    place: tuple[int, ...]
    taken: Interval
    placed: Interval


def _segments(
    size: int,
    have: Sequence[Shard],
    source: Mesh,
    want: Sequence[Shard],
    target: Mesh,
) -> Mapping[tuple[int, ...], Sequence[_Segment]]:
    """
    Returns the segments that form a receiver's part of one dimension, in order. Keys
    are the receiver's coordinates on the axes that split the dimension.
    """
    places = _places(have, source)
    if not size:
        nothing = [_Segment(places[0], (0, 0), (0, 0))]
        return dict.fromkeys(_places(want, target), nothing)
    owner, position = np.empty(size, np.int64), np.empty(size, np.int64)
    for number, place in enumerate(places):
        at = {s.axis: c for s, c in zip(have, place, strict=True)}
        indices = shard_indices(size, have, source, at)
        owner[indices], position[indices] = number, np.arange(len(indices))
    found: dict[tuple[int, ...], list[_Segment]] = {}
    for place in _places(want, target):
        at = {s.axis: c for s, c in zip(want, place, strict=True)}
        indices = shard_indices(size, want, target, at)
        owners, positions = owner[indices], position[indices]
        breaks = (np.diff(owners) != 0) | (np.diff(positions) != 1)
        bounds = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(indices)]
        found[place] = [
            _Segment(
                places[owners[start]],
                (int(positions[start]), int(positions[start]) + stop - start),
                (start, stop),
            )
            for start, stop in pairwise(bounds)
        ]
    return found


def _places(shards: Sequence[Shard], mesh: Mesh) -> list[tuple[int, ...]]:
    """Returns all coordinates on the axes of `shards`, which split a dimension."""
    return list(product(*(range(mesh.size(s.axis)) for s in shards)))


def _by_dim(
    layout: Layout, at: Mapping[str, int], rank: int
) -> tuple[tuple[int, ...], ...]:
    """Returns, for each dimension, a device's coordinates on the axes that split it."""
    dims = layout.full_dims(rank)
    return tuple(tuple(at[s.axis] for s in shards) for shards in dims)


def _place(layout: Layout, at: Mapping[str, int]) -> tuple[int, ...]:
    """
    Returns the coordinates `at` of a device on all axes that split a value in the
    layout `layout`.
    """
    return tuple(at[axis] for axis in layout.split_axes)


def _partial_axes(layout: Layout, mesh: Mesh) -> list[tuple[str, int]]:
    return [(axis, size) for axis, size in mesh.axes if axis in layout.partial_axes]


def _terms(layout: Layout, mesh: Mesh) -> int:
    """
    Returns the number of terms of a value with the layout `layout`, which is 1 if the
    value is not partial.
    """
    return prod(size for _, size in _partial_axes(layout, mesh))


def _term(layout: Layout, mesh: Mesh, at: Mapping[str, int]) -> int:
    """Returns the index of the term that the device at coordinates `at` holds."""
    number = 0
    for axis, size in _partial_axes(layout, mesh):
        number = number * size + at[axis]
    return number


def _rounds(pieces: Sequence[SentPiece]) -> Rounds:
    """
    Divides pieces into rounds. Each piece is in the first round in which both of its
    devices are free. Pieces that stay on a device are in the first round.
    """
    busy: dict[int, set[int]] = {}
    rounds: list[list[SentPiece]] = [[]]
    for piece in pieces:
        number = 0
        if piece.sender != piece.receiver:
            one = busy.setdefault(piece.sender, set())
            other = busy.setdefault(piece.receiver, set())
            while number in one or number in other:
                number += 1
            one.add(number)
            other.add(number)
        while number >= len(rounds):
            rounds.append([])
        rounds[number].append(piece)
    return rounds
