"""Placements: the effect of one mesh axis on a value."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

from distir.dialects.dist import Layout, Shard

COMBINED_BY = {"sum": "Add", "max": "Max", "min": "Min"}
"""The operator that combines two terms of a partial value, by monoid."""


class SplitPlacement(NamedTuple):
    """
    Each device along the axis has a part of dimension `dim`, in runs of `run` elements as in
    `Shard` (None: contiguous).
    """

    dim: int
    run: int | None = None


class PartialPlacement(NamedTuple):
    """
    Each device along the axis has a value of the whole shape; combined by `monoid` they are
    the value.
    """

    monoid: str


class ReplicatedPlacement(Enum):
    """Each device along the axis has the whole value."""

    REPLICATED = "replicated"

    __hash__ = (
        object.__hash__
    )  # placements are keys in inner loops; the member is single


class FreePlacement(Enum):
    """The placement of a parameter that nothing is decided for, before its first use."""

    FREE = "free"

    __hash__ = object.__hash__


Placement: TypeAlias = (
    SplitPlacement | PartialPlacement | ReplicatedPlacement | FreePlacement
)
"""What one mesh axis does to a value. Placements of different classes are never equal."""

REPLICATED = ReplicatedPlacement.REPLICATED
FREE = FreePlacement.FREE


def placement_in(layout: Layout, axis: str) -> Placement:
    """Returns the placement of a value with that layout on `axis`."""
    for dim, shards in enumerate(layout.dims):
        for shard in shards:
            if shard.axis == axis:
                return SplitPlacement(dim, shard.run)
    for name, monoid in layout.partial:
        if name == axis:
            return PartialPlacement(monoid)
    return REPLICATED


def add_placement(layout: Layout, axis: str, placement: Placement, rank: int) -> Layout:
    """
    Returns the layout after `axis` has put the value into that placement, inside the axes
    already there.
    """
    match placement:
        case SplitPlacement(dim, run):
            shards = (*layout.dim(dim), Shard(axis, run))
            return layout.with_dim(dim, shards, rank)
        case PartialPlacement(monoid):
            partial = (*layout.partial, (axis, monoid))
            return Layout(layout.mesh, layout.dims, partial)
        case _:
            return layout
