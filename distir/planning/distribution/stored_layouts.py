"""The layouts in which ZeRO stores tensors, and the notes on those for which there is none."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from distir.dialects.dist import Layout, Shard
from distir.dialects.train_ops.splits import Split
from distir.planning.annotations import request_split
from distir.sharding.layout import canonical, fits
from distir.sharding.mesh import Mesh

_NAMED = 4
"""How many of the tensors that stay whole a note names."""


def split_further(
    shape: tuple[int, ...],
    layout: Layout,
    mesh: Mesh,
    axis: str,
    outside: bool,
    cut_runs: bool,
    merged: int | None = None,
) -> Layout:
    """
    Returns the layout with one more dimension split over an axis: the first one that the
    axis divides evenly.

    What it divides are the parts that other axes leave, so that each device reduces,
    scatters and gathers its own part alone. Dimensions that other axes split in runs come
    last, and only with `cut_runs`, as their runs are then split further, for which all
    parts have to move. Of stacks of matrices (experts), dimensions that no other axis
    splits come first, as work may then be split along them, too. For an optimizer
    `outside` of the program, axes are in the mesh's order, as DTensor needs it, and
    dimensions whose runs the axis would divide are not split, nor is the dimension along
    which several of its parameters are `merged`.
    """
    several = len(shape) > 2
    dims = sorted(
        range(len(shape)),
        key=lambda dim: (_has_runs(layout, dim), several and bool(layout.dim(dim))),
    )
    for dim in dims:
        if _has_runs(layout, dim) and not cut_runs:
            continue
        if outside and dim == merged:
            continue
        inside = not outside and not _has_runs(layout, dim)
        split = layout.with_dim(dim, (*layout.dim(dim), Shard(axis)), len(shape))
        if not inside:
            split = request_split(layout, dim, Shard(axis), len(shape), mesh)
        if fits(shape, split, mesh) and not (
            outside and divides_runs(shape[dim], layout.dim(dim), mesh, axis)
        ):
            return canonical(shape, split, mesh)
    return layout


def _has_runs(layout: Layout, dim: int) -> bool:
    return any(shard.run is not None for shard in layout.dim(dim))


def axes_text(axes: Sequence[str], mesh: Mesh) -> str:
    """Returns a name for the axes that ZeRO splits over, which takes a singular verb."""
    size = prod(map(mesh.size, axes))
    if len(axes) == 1:
        return f"axis {axes[0]!r} of size {size}"
    return f"the product of axes {' and '.join(map(repr, axes))}, {size},"


def left_whole_notes(
    names: Sequence[str], axes: Sequence[str], mesh: Mesh
) -> list[str]:
    """
    Returns the notes for tensors that the axes do not divide; if there are many, they name
    the first ones only.
    """
    what = f"{axes_text(axes, mesh)} divides none of"
    if len(names) <= _NAMED:
        return [f"zero: {name} stays whole: {what} its dimensions" for name in names]
    shown = f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return [f"zero: {shown} stay whole: {what} their dimensions"]


def flattened_note(
    names: Sequence[str], axes: Sequence[str], mesh: Mesh, is_padded: bool
) -> str:
    """Returns the note on flattened parameters, all padded with zeros or none of them."""
    shown = ", ".join(names[:_NAMED])
    if len(names) > _NAMED:
        shown += f" and {len(names) - _NAMED} more"
    zeros = ", with zeros behind" if is_padded else ""
    return (
        f"zero: {shown}: stored flat{zeros}, as {axes_text(axes, mesh)} divides none of the "
        f"dimensions"
    )


def divides_runs(size: int, shards: Sequence[Shard], mesh: Mesh, axis: str) -> bool:
    """
    Whether splitting over an axis the part that these shards leave of a dimension cuts
    runs.
    """
    for shard in shards:
        size //= mesh.size(shard.axis)
        if shard.run is not None and size // shard.run % mesh.size(axis):
            return True
    return False


def blocks_of(
    shape: Sequence[int], layout: Layout, mesh: Mesh
) -> tuple[list[str], list[Split]]:
    """
    Returns the axes of a layout, and what each of them splits of a tensor of that shape.
    """
    axes: list[str] = []
    splits: list[Split] = []
    for dim, size in enumerate(shape):
        for axis, run in layout.dim(dim):
            parts = mesh.size(axis)
            size //= parts
            axes.append(axis)
            splits.append(Split(dim, parts, run or size))
    return axes, splits
