"""
The arithmetic of layouts on a mesh: which elements of a tensor each device holds.

A dimension that is split over several axes is split over the first axis; each device's
part is then split over the second axis, and so on. `Shard` explains run lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute

from distir.dialects.dist import Layout, Shard, layout_of
from distir.dialects.tensors import tensor_of
from distir.errors import DistIRError
from distir.sharding.mesh import Mesh

COMBINE = {"sum": np.add, "max": np.maximum, "min": np.minimum}
"""The function that combines two terms of a partial value, by reduction."""


def layout_problem(shape: Sequence[int], layout: Layout, mesh: Mesh) -> str | None:
    """
    Returns the reason why a tensor of the given shape cannot have `layout`, or None if
    it can.

    A legal layout uses each axis of the mesh at most once, has one entry per dimension,
    splits dimensions evenly and has canonical run lengths.
    """
    if layout.dims and len(layout.dims) != len(shape):
        return (
            f"layout {layout} is for {len(layout.dims)} dimensions, but the tensor has "
            f"{len(shape)}"
        )
    axes = [*layout.split_axes, *layout.partial_axes]
    for axis in axes:
        if axis not in mesh.sizes:
            return mesh.lacks(axis)
        if axes.count(axis) > 1:
            return f"layout {layout} uses axis {axis!r} twice"
    for index, shards in enumerate(layout.dims):
        left = shape[index]
        if left < 0 and shards:
            return (
                f"dimension {index} has no known size, so that it is not known whether "
                f"axis {shards[0].axis!r} splits it evenly"
            )
        for shard in shards:
            size = mesh.sizes[shard.axis]
            if left % size or (shard.run is not None and left % (shard.run * size)):
                run = "" if shard.run is None else f" in runs of {shard.run}"
                return (
                    f"dimension {index} of size {shape[index]} cannot be split evenly "
                    f"over axis {shard.axis!r} of size {size}{run}; uneven splits are "
                    f"not supported"
                )
            if shard.run is not None and shard.run * size == left:
                return (
                    f"write {{{shard.axis}}} instead of {{{shard.axis}:{shard.run}}}, "
                    f"which is the contiguous split"
                )
            left //= size
    return None


def check_layout(shape: Sequence[int], layout: Layout, mesh: Mesh, what: str) -> None:
    """
    Raises DistIRError if a tensor of the given shape cannot have `layout`. `what` names
    the tensor in the message.
    """
    problem = layout_problem(shape, layout, mesh)
    if problem is not None:
        raise DistIRError(f"{what}: {problem}")


def fits(shape: Sequence[int], layout: Layout, mesh: Mesh) -> bool:
    """
    Whether a tensor of the given shape can have `layout`, after redundant run lengths
    are removed.
    """
    return layout_problem(shape, canonical(shape, layout, mesh), mesh) is None


def canonical(shape: Sequence[int], layout: Layout, mesh: Mesh) -> Layout:
    """
    Returns the layout without redundant run lengths (block sizes). A run length is
    redundant if the split is contiguous.
    """
    if all(s.run is None and s.axis in mesh.sizes for d in layout.dims for s in d):
        return layout
    dims: list[tuple[Shard, ...]] = []
    for index, shards in enumerate(layout.dims):
        left = shape[index]
        out: list[Shard] = []
        for shard in shards:
            size = mesh.size(shard.axis)
            contiguous = shard.run is None or shard.run * size == left
            out.append(Shard(shard.axis, None if contiguous else shard.run))
            left //= size
        dims.append(tuple(out))
    return replace(layout, dims=tuple(dims))


def in_mesh_order(shape: Sequence[int], layout: Layout, mesh: Mesh) -> Layout:
    """
    Returns the layout with the axes of each dimension in the mesh's order where this is
    possible. Every device holds the same elements as before. For `{t, d}` on 64
    elements over axes d and t of size 2, the result is `{d:16, t}`.
    """
    order = [axis for axis, _ in mesh.axes]
    return _reordered(
        shape,
        layout,
        mesh,
        lambda a, b: (
            a.run == (b.run or 0) * mesh.size(b.axis)
            and order.index(a.axis) > order.index(b.axis)
        ),
        lambda a, b: (b, a._replace(run=b.run)),
    )


def nested(shape: Sequence[int], layout: Layout, mesh: Mesh) -> Layout:
    """
    Returns the layout with nested axes in place of axes that alternate in blocks of the
    same length. Every device holds the same elements as before. For `{d:16, t}` on 64
    elements over axes d and t of size 2, the result is `{t, d}`.

    Communication along d then stays within the parts over t.
    """
    return _reordered(
        shape,
        layout,
        mesh,
        lambda a, b: a.run == b.run,
        lambda a, b: (b._replace(run=(a.run or 0) * mesh.size(a.axis)), a),
    )


def _reordered(
    shape: Sequence[int],
    layout: Layout,
    mesh: Mesh,
    differs: Callable[[Shard, Shard], bool],
    swapped: Callable[[Shard, Shard], tuple[Shard, Shard]],
) -> Layout:
    """
    Returns the layout with the axes of each dimension sorted by swaps of neighbours.
    `differs` tells whether two neighbours are in the wrong order, and `swapped` returns
    them swapped. Both functions get shards with explicit run lengths (block sizes).
    """
    if all(len(shards) < 2 for shards in layout.dims):
        return layout
    dims: list[tuple[Shard, ...]] = []
    for size, before in zip(shape, layout.dims, strict=True):
        shards, left = list[Shard](), size
        for shard in before:
            left //= mesh.size(shard.axis)
            shards.append(shard._replace(run=shard.run or left))
        for end in range(len(shards) - 1, 0, -1):
            for i in range(end):
                pair = shards[i], shards[i + 1]
                if differs(*pair):
                    shards[i : i + 2] = swapped(*pair)
        dims.append(tuple(shards))
    return canonical(shape, replace(layout, dims=tuple(dims)), mesh)


def local_shape(shape: Sequence[int], layout: Layout, mesh: Mesh) -> tuple[int, ...]:
    """
    Returns the shape of each device's part of a tensor that has the global shape
    `shape` and the layout `layout`. Raises DistIRError if the layout has a number of
    dimensions that differs from the tensor's.
    """
    if layout.dims and len(layout.dims) != len(shape):
        check_layout(shape, layout, mesh, f"a tensor of shape {list(shape)}")
    return tuple(
        size // prod(mesh.size(s.axis) for s in shards)
        for size, shards in zip(shape, layout.full_dims(len(shape)), strict=True)
    )


def local_type(type_: Attribute, mesh_of: Mapping[str, Mesh]) -> Attribute:
    """
    Returns the per-rank type of a distributed tensor type. Any other type is returned
    unchanged.
    """
    layout = layout_of(type_)
    if layout is None or not isinstance(type_, TensorType):
        return type_
    shape = local_shape(type_.get_shape(), layout, mesh_of[layout.mesh])
    return tensor_of(type_.element_type, shape)


def joint_run(size: int, shards: Sequence[Shard], mesh: Mesh) -> int | None:
    """
    Returns the run length (block size) of the split of `size` elements over all axes of
    `shards` together, as one group with the first axis major. Returns None if the split
    is contiguous. Raises ValueError if no single run length describes the split.
    """
    blocks, run = joint_split(size, shards, mesh)
    if blocks > 1:
        raise ValueError("the axes interleave differently")
    return run


def joint_split(
    size: int, shards: Sequence[Shard], mesh: Mesh
) -> tuple[int, int | None]:
    """
    Returns the split of `size` elements over all axes of `shards` together, as one
    group with the first axis major. The outer axes divide the elements into contiguous
    blocks; the other axes split each block block-cyclically. The result is the number
    of blocks, and the run length of the inner split. The number is 1 and the run length
    None if the split is contiguous. Raises ValueError if no single run length describes
    the inner split.
    """
    left, blocks, inner = size, 1, list(shards)
    while inner and inner[0].run in (None, left // mesh.size(inner[0].axis)):
        blocks *= mesh.size(inner[0].axis)
        left = size // blocks
        inner.pop(0)
    if not inner:
        return 1, None
    runs = list[int]()
    for shard in inner:
        left //= mesh.size(shard.axis)
        runs.append(left if shard.run is None else shard.run)
    for outer, run, shard in zip(runs, runs[1:], inner[1:], strict=False):
        if outer != run * mesh.size(shard.axis):
            raise ValueError("the axes interleave differently")
    return blocks, runs[-1]


def shard_indices(
    size: int, shards: Sequence[Shard], mesh: Mesh, coordinates: Mapping[str, int]
) -> npt.NDArray[np.int64]:
    """
    Returns the global indices, in order, of the elements of a dimension that the device
    at `coordinates` holds.
    """
    indices = np.arange(size, dtype=np.int64)
    for shard in shards:
        n = mesh.size(shard.axis)
        run = shard.run if shard.run is not None else len(indices) // n
        # The count is given explicitly, as it cannot be inferred for no elements.
        blocks = indices.reshape(len(indices) // max(n * run, 1), n, run)
        indices = blocks[:, coordinates[shard.axis], :].reshape(-1)
    return indices


def places_the_same(
    shape: Sequence[int], one: Layout, other: Layout, mesh: Mesh
) -> bool:
    """
    Whether every device holds the same elements of a tensor of the given shape under
    two legal layouts. The layouts may list the axes of a dimension in different orders:
    `{t, d}` and `{d:16, t}` are the same on 64 elements over axes d and t of size 2.
    """
    if one.mesh != other.mesh or one.partial != other.partial:
        return False
    rank = len(shape)
    return all(
        a == b or _same_indices(size, a, b, mesh)
        for size, a, b in zip(
            shape, one.full_dims(rank), other.full_dims(rank), strict=True
        )
    )


def _same_indices(
    size: int, one: Sequence[Shard], other: Sequence[Shard], mesh: Mesh
) -> bool:
    """Whether two splits of a dimension give every device the same indices."""
    axes = [shard.axis for shard in one]
    if sorted(axes) != sorted(shard.axis for shard in other):
        return False
    places = product(*(range(mesh.size(axis)) for axis in axes))
    return all(
        np.array_equal(
            shard_indices(size, one, mesh, coordinates),
            shard_indices(size, other, mesh, coordinates),
        )
        for coordinates in (dict(zip(axes, at, strict=True)) for at in places)
    )


def take_shard(
    array: npt.NDArray[Any],
    layout: Layout,
    mesh: Mesh,
    coordinates: Mapping[str, int],
) -> npt.NDArray[Any]:
    """
    Returns the part of a global array that the device at `coordinates` holds. If the
    layout is partial over axes, the devices at coordinate 0 on these axes hold the
    value. All other devices hold zeros for sums, and the same value for maxima and
    minima.
    """
    for dim, shards in enumerate(layout.dims):
        if shards:
            indices = shard_indices(array.shape[dim], shards, mesh, coordinates)
            array = np.take(array, indices, axis=dim)
    for axis, reduction in layout.partial:
        if reduction == "sum" and coordinates[axis] != 0:
            array = np.zeros_like(array)
    return array


def assemble(
    shards: Sequence[npt.NDArray[Any]],
    shape: Sequence[int],
    layout: Layout,
    mesh: Mesh,
) -> npt.NDArray[Any]:
    """
    Returns the global array that the devices' parts form; `shards` has one part per
    device, in the mesh's order. Partial values are reduced. This is the inverse of
    `take_shard`.
    """
    out = np.empty(tuple(shape), dtype=shards[0].dtype)
    by_coordinates: dict[tuple[int, ...], npt.NDArray[Any]] = {}
    split = layout.split_axes
    partial = dict(layout.partial)
    for part, coordinates in zip(shards, mesh.coordinates, strict=True):
        replicated = [a for a, _ in mesh.axes if a not in split and a not in partial]
        if any(coordinates[a] for a in replicated):
            continue
        key = tuple(coordinates[a] for a in split)
        known = by_coordinates.get(key)
        if known is None:
            by_coordinates[key] = part
        else:
            (reduction,) = set(partial.values())
            by_coordinates[key] = COMBINE[reduction](known, part)
    for key, part in by_coordinates.items():
        coordinates = dict(zip(split, key, strict=True))
        if layout.dims:
            index = np.ix_(
                *(
                    shard_indices(n, s, mesh, coordinates)
                    for n, s in zip(shape, layout.dims, strict=True)
                )
            )
            out[index] = part
        else:
            out[...] = part
    return out
