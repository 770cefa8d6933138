"""Expresses layouts as placements of PyTorch's DTensor."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import (
    _StridedShard,  # pyright: ignore[reportPrivateUsage]
)

from distir.errors import DistIRError

if TYPE_CHECKING:
    from torch.distributed.tensor.placement_types import Placement

Split = tuple[tuple[str, int | None], ...]
"""
The axes that split a dimension, outermost first, each with its run length; None if each
part is a single run.
"""

Axes = tuple[tuple[str, int], ...]
"""The axes of a mesh with their sizes, outermost first."""


def placements(
    shape: Sequence[int], split: Sequence[Split], axes: Mapping[str, int]
) -> list[Placement]:
    """
    Returns one DTensor placement for each axis of a mesh, for a tensor of global shape
    `shape`. `split` gives the axes that split each dimension, and `axes` the sizes of
    all axes. DTensor applies placements in the order of the mesh. If the order of
    `split` differs, or a part consists of several runs, the placement is a strided
    shard. Raises DistIRError if no placements of DTensor express the split.
    """
    found: dict[str, Placement] = {name: Replicate() for name in axes}
    for dim, (size, own) in enumerate(zip(shape, split, strict=False)):
        if own:
            strides = _strides(size, tuple(own), tuple(axes.items()))
            if strides is None:
                raise DistIRError(
                    f"DTensor has no placement for a dimension of {size} elements that is "
                    f"split over {own}; choose other degrees of parallelism"
                )
            for name, stride in strides.items():
                found[name] = (
                    Shard(dim)
                    if stride == 1
                    else _StridedShard(dim, split_factor=stride)
                )
    return list(found.values())


def innermost_shard(
    split: Sequence[Split], batch: Collection[str]
) -> tuple[int, tuple[str, int | None]] | None:
    """
    Returns the dimension that an axis outside `batch` splits, and the axis with its run
    length. Returns None if no such axis or several such axes split the tensor, or if an
    axis of the batch splits the same dimension further.
    """
    found = [
        (dim, shards)
        for dim, shards in enumerate(split)
        if any(name not in batch for name, _ in shards)
    ]
    if len(found) != 1:
        return None
    ((dim, (*outer, last)),) = found
    is_innermost = last[0] not in batch and all(name in batch for name, _ in outer)
    return (dim, last) if is_innermost else None


@cache
def _strides(size: int, split: Split, axes: Axes) -> Mapping[str, int] | None:
    """
    Returns, for each axis that splits a dimension of `size` elements, the split factor
    of its strided shard; 1 stands for a plain shard. Returns None if no factors express
    the split.
    """
    sizes = dict(axes)
    names = [name for name, _ in axes if any(name == own for own, _ in split)]
    elements = np.arange(size)
    wanted = {
        place: _taken(elements, split, sizes, dict(zip(names, place, strict=True)))
        for place in product(*(range(sizes[name]) for name in names))
    }
    for factors in _factors(size, [sizes[name] for name in names]):
        if all(
            np.array_equal(own, _strided(elements, factors, sizes, names, place))
            for place, own in wanted.items()
        ):
            return dict(zip(names, factors, strict=True))
    return None


def _taken(
    elements: npt.NDArray[Any],
    split: Split,
    sizes: Mapping[str, int],
    place: Mapping[str, int],
) -> npt.NDArray[Any]:
    """
    Returns the part of `elements` that a device holds by DistIR's rules. `place` gives
    the device's coordinates in the mesh.
    """
    for name, run in split:
        parts = sizes[name]
        width = len(elements) // parts if run is None else run
        elements = elements.reshape(-1, parts, width)[:, place[name]].reshape(-1)
    return elements


def _strided(
    elements: npt.NDArray[Any],
    factors: Sequence[int],
    sizes: Mapping[str, int],
    names: Sequence[str],
    place: Sequence[int],
) -> npt.NDArray[Any]:
    """
    Returns the part of `elements` that a device holds by DTensor's rules, for strided
    shards with the given `factors`. `place` holds the device's coordinates on the axes
    `names`.
    """
    for name, factor, index in zip(names, factors, place, strict=True):
        elements = elements.reshape(factor, sizes[name], -1)[:, index].reshape(-1)
    return elements


def _factors(size: int, parts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """
    Yields candidates for the split factors of axes of sizes `parts`, plain shards
    first.
    """
    if not parts:
        yield ()
        return
    own = size // parts[0]
    for factor in (f for f in range(1, own + 1) if own % f == 0):
        yield from ((factor, *others) for others in _factors(own, parts[1:]))
