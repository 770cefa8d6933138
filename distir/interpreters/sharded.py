"""A distributed value in one process, as the stack of its shards over a mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy.typing as npt
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute

from distir.dialects.dist import Layout, layout_of
from distir.errors import DistIRError
from distir.sharding.layout import assemble, check_layout, local_shape, take_shard
from distir.sharding.mesh import Mesh

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Sharded:
    """
    A tensor of global shape `shape` with layout `layout`. `shards[i]` is the shard of
    device `mesh.devices[i]`. Devices with equal shards usually share one array.
    """

    shards: tuple[Array, ...]
    shape: tuple[int, ...]
    layout: Layout
    mesh: Mesh

    @staticmethod
    def split(array: Array, type_: Attribute, meshes: Mapping[str, Mesh]) -> Sharded:
        """
        Returns the shards of a global array, for the layout of the distributed type
        `type_`.
        """
        layout = layout_of(type_)
        assert layout is not None and isinstance(type_, TensorType)
        mesh = mesh_of(layout, meshes)
        check_layout(array.shape, layout, mesh, str(type_))
        known: dict[tuple[int, ...], Array] = {}
        shards: list[Array] = []
        for coordinates in mesh.coordinates:
            key = _key(coordinates, layout)
            if key not in known:
                known[key] = take_shard(array, layout, mesh, coordinates)
            shards.append(known[key])
        return Sharded(tuple(shards), array.shape, layout, mesh)

    def assemble(self) -> Array:
        """Returns the global array. Partial values are reduced."""
        if not self.layout.split_axes and not self.layout.partial:
            return self.shards[0]
        return assemble(self.shards, self.shape, self.layout, self.mesh)

    def check(self, name: str) -> None:
        """
        Checks the shards. Raises DistIRError, with `name` in the message, if a shard
        does not have the local shape, or if devices that must hold equal elements hold
        different elements.
        """
        shape = self.local_shape
        fixed = [i for i, size in enumerate(self.shape) if size >= 0]
        first: dict[tuple[int, ...], Array] = {}
        for shard, coordinates, device in zip(
            self.shards, self.mesh.coordinates, self.mesh.devices, strict=True
        ):
            if shard.ndim != len(shape) or any(
                shard.shape[i] != shape[i] for i in fixed
            ):
                raise DistIRError(
                    f"{name}: device {device} computed a tensor of shape "
                    f"{list(shard.shape)}, but layout {self.layout} of a tensor of shape "
                    f"{list(self.shape)} means {list(shape)}; run verify-distribution to "
                    "find the wrong layout"
                )
            other = first.setdefault(_key(coordinates, self.layout), shard)
            if other is not shard and not _equal(other, shard):
                raise DistIRError(
                    f"{name}: devices that hold the same part under layout {self.layout} "
                    f"computed different values (device {device} is one of them); run "
                    "verify-distribution to find the wrong layout"
                )

    @cached_property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of each shard."""
        return local_shape(self.shape, self.layout, self.mesh)

    def on(self, device: int) -> Array:
        """Returns the shard of the device with id `device`."""
        return self.shards[self.mesh.devices.index(device)]


def mesh_of(layout: Layout, meshes: Mapping[str, Mesh]) -> Mesh:
    """
    Returns the mesh of `layout`. Raises DistIRError if `meshes` has no mesh of that
    name.
    """
    if layout.mesh not in meshes:
        raise DistIRError(f"layout {layout}: there is no device.mesh @{layout.mesh}")
    return meshes[layout.mesh]


def from_shards(
    shards: Sequence[Array], type_: Attribute, meshes: Mapping[str, Mesh]
) -> Sharded:
    """
    Returns the sharded value of the distributed type `type_` whose shards are `shards`,
    one for each device of its mesh.
    """
    layout = layout_of(type_)
    assert layout is not None and isinstance(type_, TensorType)
    return Sharded(tuple(shards), type_.get_shape(), layout, mesh_of(layout, meshes))


def _key(coordinates: Mapping[str, int], layout: Layout) -> tuple[int, ...]:
    """
    Returns a key that is equal for devices that hold the same part of a value with
    `layout`.
    """
    return tuple(coordinates[a] for a in (*layout.split_axes, *layout.partial_axes))


def _equal(a: Array, b: Array) -> bool:
    if a.dtype.kind in "fcV":
        return bool(((a == b) | ((a != a) & (b != b))).all())
    return bool((a == b).all())
