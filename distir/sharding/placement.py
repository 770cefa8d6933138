"""What one mesh axis does to a value."""

from __future__ import annotations

from typing import NamedTuple

from distir.dialects.dist import Layout, Shard


class Placement(NamedTuple):
    """
    What one mesh axis does to a value: keep it `replicated`, `split` a dimension with a run
    length as in `Shard`, or leave it `partial`. `free` is the placement of a parameter
    without a decision, before its first use.
    """

    kind: str
    dim: int = 0
    run: int | None = None
    monoid: str = ""


REPLICATED = Placement("replicated")
FREE = Placement("free")


def placement_in(layout: Layout, axis: str) -> Placement:
    """Returns what `axis` does to a value with that layout."""
    for dim, shards in enumerate(layout.dims):
        for shard in shards:
            if shard.axis == axis:
                return Placement("split", dim, shard.run)
    for name, monoid in layout.partial:
        if name == axis:
            return Placement("partial", monoid=monoid)
    return REPLICATED


def add_placement(layout: Layout, axis: str, placement: Placement, rank: int) -> Layout:
    """
    Returns the layout after `axis` has put the value into that placement, inside the axes
    already there.
    """
    if placement.kind == "split":
        shards = (*layout.dim(placement.dim), Shard(axis, placement.run))
        return layout.with_dim(placement.dim, shards, rank)
    if placement.kind == "partial":
        return Layout(
            layout.mesh, layout.dims, (*layout.partial, (axis, placement.monoid))
        )
    return layout
