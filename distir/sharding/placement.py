"""Placements: how one mesh axis distributes a value."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, TypeAlias

from distir.dialects.dist import Layout, Shard

COMBINED_BY = {"sum": "Add", "max": "Max", "min": "Min"}
"""The ONNX operator that combines two terms of a partial value, by reduction."""


class SplitPlacement(NamedTuple):
    """
    A split: each device along the axis has a part of dimension `dim`. If `run` is None,
    the part is contiguous. Otherwise blocks of `run` elements are distributed to the
    devices in turn (block-cyclic).
    """

    dim: int
    run: int | None = None


class PartialPlacement(NamedTuple):
    """
    A partial value: each device along the axis has a term with the value's full shape.
    `reduction` (`sum`, `max` or `min`) combines the terms into the value.
    """

    reduction: str


class ReplicatedPlacement(Enum):
    """A replicated value: each device along the axis has the whole value."""

    REPLICATED = "replicated"

    __hash__ = (
        object.__hash__
    )  # placements are keys in inner loops; the member is single


class FreePlacement(Enum):
    """
    The placement of a parameter before its first use: any placement is still possible.
    """

    FREE = "free"

    __hash__ = object.__hash__


Placement: TypeAlias = (
    SplitPlacement | PartialPlacement | ReplicatedPlacement | FreePlacement
)
"""
How one mesh axis distributes a value. Placements of different classes are never equal.
"""

REPLICATED = ReplicatedPlacement.REPLICATED
FREE = FreePlacement.FREE


def placement_in(layout: Layout, axis: str) -> Placement:
    """Returns the placement on `axis` of a value with the layout `layout`."""
    for dim, shards in enumerate(layout.dims):
        for shard in shards:
            if shard.axis == axis:
                return SplitPlacement(dim, shard.run)
    for name, reduction in layout.partial:
        if name == axis:
            return PartialPlacement(reduction)
    return REPLICATED


def add_placement(layout: Layout, axis: str, placement: Placement, rank: int) -> Layout:
    """
    Returns the layout with `placement` on `axis` added. The new axis is inside the axes
    that already split the same dimension. `rank` is the value's number of dimensions.
    """
    match placement:
        case SplitPlacement(dim, run):
            shards = (*layout.dim(dim), Shard(axis, run))
            return layout.with_dim(dim, shards, rank)
        case PartialPlacement(reduction):
            partial = (*layout.partial, (axis, reduction))
            return Layout(layout.mesh, layout.dims, partial)
        case _:
            return layout
