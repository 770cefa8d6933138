"""A mesh as plain data: axes, devices, coordinates and groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from distir.dialects.device import MeshOp
from distir.errors import DistIRError

MESH = "mesh"
"""
The symbol of the mesh that `distribute` declares. Requests in a sequential program name
it before it exists.
"""

TIME_AXIS = "k"
"""
The name of the micro-batch axis. Its coordinates are moments, and a device works on one
micro-batch in each. A program has this axis until the pass `pipeline` folds it.
"""


@dataclass(frozen=True)
class Mesh:
    """Named axes over an ordered list of devices; the last axis varies fastest."""

    name: str
    axes: tuple[tuple[str, int], ...]
    devices: tuple[int, ...]

    @staticmethod
    def of(op: MeshOp) -> Mesh:
        """Returns the mesh that the op `device.mesh` declares."""
        return Mesh(op.sym_name.data, op.axes.data, op.devices.data)

    @property
    def has_time(self) -> bool:
        """Whether the mesh has the micro-batch axis. If so, it is the first axis."""
        return bool(self.axes) and self.axes[0][0] == TIME_AXIS

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The sizes of the axes by name."""
        return dict(self.axes)

    def size(self, axis: str) -> int:
        """
        Returns the size of the axis `axis`. Raises DistIRError if the mesh lacks this
        axis.
        """
        size = self.sizes.get(axis)
        if size is None:
            raise DistIRError(self.lacks(axis))
        return size

    def lacks(self, axis: str) -> str:
        """Returns an error message: the mesh has no axis `axis`."""
        known = ", ".join(self.sizes) or "none"
        return f"mesh @{self.name} has no axis {axis!r} (axes: {known})"

    def has_root(self, root: Mesh, axes: Sequence[str]) -> bool:
        """
        Whether a collective over `axes` can have its root on the mesh `root`. That mesh
        must consist of a single device of this mesh, and `axes` must include all axes
        of this mesh with a size above 1.
        """
        idle = [a for a, n in self.axes if n > 1 and a not in axes]
        return len(root.devices) == 1 and root.devices[0] in self.devices and not idle

    def with_size(self, axis: str, size: int) -> Mesh:
        """Returns the mesh with size `size` for `axis`, over the same devices."""
        axes = tuple((a, size if a == axis else n) for a, n in self.axes)
        return Mesh(self.name, axes, self.devices)

    def with_sizes(self, sizes: Mapping[str, int]) -> Mesh:
        """
        Returns the mesh with the axis sizes `sizes`, over the first devices of this
        mesh. Axes that are not in `sizes` get size 1; the micro-batch axis keeps its
        size.
        """
        axes = tuple(
            (a, n if a == TIME_AXIS else sizes.get(a, 1)) for a, n in self.axes
        )
        return Mesh(self.name, axes, self.devices[: prod(n for _, n in axes)])

    def position_of_axis(self, axis: str) -> int:
        """Returns the index of `axis` in `axes`."""
        return list(self.sizes).index(axis)

    @cached_property
    def coordinates(self) -> tuple[Mapping[str, int], ...]:
        """The coordinates of each device, in the order of `devices`."""
        names = [name for name, _ in self.axes]
        ranges = [range(size) for _, size in self.axes]
        return tuple(dict(zip(names, c, strict=True)) for c in product(*ranges))

    def coordinates_of(self, device: int) -> Mapping[str, int]:
        """Returns the coordinates of the device with the id `device`."""
        return self.coordinates[self.devices.index(device)]

    def stride(self, axis: str) -> int:
        """
        Returns the distance in `devices` between two neighbours along `axis`.
        """
        at = self.position_of_axis(axis)
        return prod(size for _, size in self.axes[at + 1 :])

    def position(self, coordinates: Mapping[str, int]) -> int:
        """Returns the index in `devices` of the device at `coordinates`."""
        position = 0
        for name, size in self.axes:
            position = position * size + coordinates[name]
        return position

    def group(self, device: int, axes: Sequence[str]) -> tuple[int, ...]:
        """
        Returns the devices that differ from `device` only in their coordinates on
        `axes`. They are ordered by these coordinates, with the first axis major.
        """
        own = self.coordinates_of(device)
        ranges = [range(self.size(axis)) for axis in axes]
        return tuple(
            self.devices[self.position({**own, **dict(zip(axes, c, strict=True))})]
            for c in product(*ranges)
        )

    def groups(self, axes: Sequence[str]) -> Iterator[tuple[int, ...]]:
        """
        Yields all groups of devices along `axes`. Each device is in exactly one group.
        """
        seen: set[int] = set()
        for device in self.devices:
            if device not in seen:
                group = self.group(device, axes)
                seen.update(group)
                yield group


def only_mesh(module: ModuleOp) -> Mesh:
    """
    Returns the mesh of a module that declares exactly one mesh. Raises DistIRError if
    the module declares no mesh or several.
    """
    known = meshes(module)
    if len(known) != 1:
        raise DistIRError(
            f"the module has {len(known)} meshes ({', '.join(known) or 'none'}); it needs "
            f"one to be distributed over"
        )
    return next(iter(known.values()))


def meshes(module: Operation) -> dict[str, Mesh]:
    """
    Returns every mesh that a module declares, by name. Raises DistIRError if `module`
    is not a module.
    """
    if not isinstance(module, ModuleOp):
        raise DistIRError("expected a module")
    return {
        op.sym_name.data: Mesh.of(op)
        for op in module.body.block.ops
        if isinstance(op, MeshOp)
    }
