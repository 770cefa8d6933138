"""
Layouts in which ZeRO stores tensors, and notes on the tensors that ZeRO cannot split.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from distir.dialects.dist import Layout, Shard
from distir.dialects.train_ops.splits import Split
from distir.planning.annotations import request_split
from distir.sharding.layout import canonical, fits
from distir.sharding.mesh import Mesh

_NAMED = 4
"""The largest number of tensors that a note names."""


def split_further(
    shape: tuple[int, ...],
    layout: Layout,
    mesh: Mesh,
    axis: str,
    outside: bool,
    cut_runs: bool,
    merged: int | None = None,
    last: int | None = None,
) -> Layout:
    """
    Returns `layout` with one more dimension split over the axis `axis`: the first
    suitable dimension that the axis divides evenly. Returns `layout` unchanged if no
    dimension is suitable.

    The axis divides the parts that the axes in `layout` leave, so that each device
    reduces, scatters and gathers only its own part. Dimensions that `layout` splits
    block-cyclically come at the end. They are used only with `cut_runs`, because
    cutting their blocks (runs) moves all parts. In stacks of matrices (experts),
    dimensions that `layout` does not split come first, because work may then be split
    along them as well. The dimension `last` comes after all other dimensions without a
    block-cyclic split.

    `outside` says that the optimizer runs outside of the program. Axes are then in the
    mesh's order, as DTensor requires. Dimensions with blocks that the axis would cut
    are then not split, and neither is the dimension `merged`, along which several of
    the optimizer's parameters are joined.
    """
    several = len(shape) > 2
    dims = sorted(
        range(len(shape)),
        key=lambda dim: (
            _has_runs(layout, dim),
            dim == last,
            several and bool(layout.dim(dim)),
        ),
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
    """
    Returns a text that names the axes over which ZeRO splits, as the subject of a
    singular verb.
    """
    size = prod(map(mesh.size, axes))
    if len(axes) == 1:
        return f"axis {axes[0]!r} of size {size}"
    return f"the product of axes {' and '.join(map(repr, axes))}, {size},"


def left_whole_notes(
    names: Sequence[str], axes: Sequence[str], mesh: Mesh
) -> list[str]:
    """
    Returns notes for the tensors `names`, which the axes cannot split. If there are
    many tensors, one note names the first ones and gives the number of the remaining
    ones.
    """
    what = f"{axes_text(axes, mesh)} divides none of"
    if len(names) <= _NAMED:
        return [f"zero: {name} stays whole: {what} its dimensions" for name in names]
    shown = f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return [f"zero: {shown} stay whole: {what} their dimensions"]


def flattened_note(
    names: Sequence[str], axes: Sequence[str], mesh: Mesh, is_padded: bool
) -> str:
    """
    Returns a note on the flattened parameters `names`. With `is_padded`, the note says
    that they are padded with zeros.
    """
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
    Whether the axis `axis` would cut blocks (runs) of a block-cyclic split if it split
    a dimension of `size` elements further than `shards` do.
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
    Returns the axes that split a tensor of shape `shape` in `layout`, and for each axis
    the split that it makes.
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
