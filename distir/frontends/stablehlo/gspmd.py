"""
Reads shardings of GSPMD, such as `{devices=[2,1,4]<=[8] last_tile_dim_replicate}`.

GSPMD does not name a mesh: each sharding arranges the devices on a grid. The mesh of a
file is the coarsest grid that can express all shardings of the file. Its axes are
`axis0`, `axis1`, ..., outermost first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np
import numpy.typing as npt

from distir.errors import DistIRError
from distir.frontends.stablehlo.sharding import Annotation, Axes, Sharding

_TILES = re.compile(
    r"devices=\[(?P<tiles>[\d,]+)\]"
    r"(?:<=\[(?P<iota>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?|(?P<list>[\d,]+))"
)
_UNSPECIFIED = re.compile(r"unspecified_dims=\[[\d,]+\]")
_FOREIGN = ("maximal", "manual", "{{", "unreduced")


@dataclass(frozen=True)
class _Tiling:
    """
    The arrangement of devices in one sharding. `dims` has, for each dimension of the
    tensor, the strides and sizes of the grid of devices along the dimension, major to
    minor. `cuts` are the device strides at which the mesh must have an axis.
    """

    dims: tuple[tuple[tuple[int, int], ...], ...]
    cuts: frozenset[int]


def read_gspmd(annotations: Sequence[Annotation]) -> tuple[Axes, list[Sharding | None]]:
    """
    Returns the axes of the mesh that all annotations share, and one entry for each
    annotation: its sharding, or None if the annotation requests nothing. Raises
    DistIRError for a sharding that no layout can express, and for shardings without a
    common mesh.
    """
    tilings = [_tiling(annotation) for annotation in annotations]
    cuts = sorted({1}.union(*(t.cuts for t in tilings if t is not None)))
    if any(large % small for small, large in pairwise(cuts)):
        raise DistIRError(
            f"{annotations[0].what}: the shardings of this file have no common mesh; lower "
            f"the function with one mesh, or import it with --ignore-shardings"
        )
    steps = [(small, large // small) for small, large in pairwise(cuts)][::-1]
    axes = tuple((f"axis{i}", size) for i, (_, size) in enumerate(steps))
    every = frozenset(name for name, _ in axes)
    found: list[Sharding | None] = []
    for annotation, tiling in zip(annotations, tilings, strict=True):
        if tiling is None:
            found.append(None)
            continue
        dims = tuple(
            tuple(
                f"axis{i}"
                for stride, size in radices
                for i, (own, _) in enumerate(steps)
                if stride <= own < stride * size
            )
            for radices in tiling.dims
        )
        listed = frozenset(axis for dim in dims for axis in dim)
        is_open = _UNSPECIFIED.search(annotation.text) is not None
        found.append(Sharding(dims, listed if is_open else every))
    return axes, found


def _tiling(annotation: Annotation) -> _Tiling | None:
    text = annotation.text.strip()
    if not text or text.startswith("{unknown"):
        return None
    if text.startswith("{replicated"):
        return _Tiling((), frozenset())
    match = _TILES.search(text)
    if match is None or any(word in text for word in _FOREIGN):
        raise DistIRError(
            f"{annotation.what} has the sharding {text!r}, which no layout can express; "
            f"import the file with --ignore-shardings"
        )
    shape = [int(n) for n in match["tiles"].split(",")]
    if match["list"] is not None:
        devices = np.array([int(n) for n in match["list"].split(",")])
    else:
        iota = [int(n) for n in match["iota"].split(",")]
        devices = np.arange(prod(iota)).reshape(iota)
        if match["order"] is not None:
            devices = devices.transpose([int(n) for n in match["order"].split(",")])
    tiles = devices.reshape(shape)
    dims = [_radices(tiles, dim, annotation) for dim in range(tiles.ndim)]
    cuts = {n for dim in dims for stride, size in dim for n in (stride, stride * size)}
    is_replicated = "last_tile_dim_replicate" in text or "last_tile_dims=" in text
    if is_replicated:
        dims.pop()
    return _Tiling(tuple(dims), frozenset(cuts))


def _radices(
    tiles: npt.NDArray[np.int64], dim: int, annotation: Annotation
) -> tuple[tuple[int, int], ...]:
    """
    Returns the strides and sizes of the grid that the devices form along dimension
    `dim` of `tiles`, major to minor. Raises DistIRError if the devices do not form a
    grid.
    """
    first = tuple(slice(None) if i == dim else 0 for i in range(tiles.ndim))
    line = tiles[first] - tiles[(0,) * tiles.ndim]
    found: list[tuple[int, int]] = []
    known = np.zeros(1, np.int64)
    while len(known) < len(line):
        rest = line[:: len(known)]
        stride, size = int(rest[1]), 2
        while size < len(rest) and rest[size] == size * stride:
            size += 1
        found.append((stride, size))
        known = (np.arange(size)[:, None] * stride + known).reshape(-1)
        if stride < 1 or len(line) % len(known):
            break
    if len(known) != len(line) or (known != line).any():
        raise DistIRError(
            f"{annotation.what} lists devices in an order that is no grid; import the file "
            f"with --ignore-shardings"
        )
    return tuple(reversed(found))
