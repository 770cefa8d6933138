"""
Maps the values of a program to the devices that hold them, and to their bytes on a
device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import ceil, prod
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import TensorType, UnrankedTensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist import layout_of
from distir.dialects.onnx_ops.values import bytes_per_element
from distir.errors import DistIRError
from distir.interpreters.simulator.costs.communication import Topology, shared, topology
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.interpreters.simulator.engine.expert_rows import ExpertRows
from distir.program import describe
from distir.program.unknown_sizes import origin_of_unknown
from distir.sharding.layout import check_layout, local_shape
from distir.sharding.mesh import Mesh

Positions = slice | npt.NDArray[np.intp]
"""An index into arrays that have one entry per device of the program."""

Bytes = int | npt.NDArray[np.int64]
"""A number of bytes, the same on each device or one per device."""


class DeviceMap:
    """
    The devices that a program uses. Each device has a position, from 0 on, which is its
    index in arrays over devices. `meshes` maps names to the meshes of the module,
    `used` holds the names of the meshes that hold values, and `hardware` is the
    cluster.

    In a sequential program, values have no layout and are on the first device. In a
    distributed program, a value without a layout is a sequence of tensors, and is on no
    device.

    `expert_rows` holds the values in which, as expected, some rows of experts are
    empty.
    """

    def __init__(
        self, meshes: Mapping[str, Mesh], used: Sequence[str], hardware: Hardware
    ):
        self.meshes = meshes
        self.hardware = hardware
        self.used = tuple(used)
        self.expert_rows: dict[SSAValue, ExpertRows] = {}
        self.devices: tuple[int, ...] = tuple(
            sorted({d for name in used for d in meshes[name].devices}) or (0,)
        )
        self.is_sequential = not used
        self._position = {d: i for i, d in enumerate(self.devices)}
        self._positions: dict[str, Positions] = {}
        self._groups: dict[tuple[str, tuple[str, ...]], Groups] = {}
        # Keyed by the type's id, because hashing is slow; the values keep types alive.
        self._bytes: dict[int, tuple[Attribute, int]] = {}
        self._shapes: dict[int, tuple[Attribute, tuple[int, ...]]] = {}

    def mesh_names(self, values: Sequence[SSAValue]) -> list[str]:
        """Returns the distinct names of the meshes that hold `values`, in order."""
        types = {id(type_): type_ for type_ in [value.type for value in values]}
        layouts = (layout_of(type_) for type_ in types.values())
        return list(dict.fromkeys(layout.mesh for layout in layouts if layout))

    def positions(self, mesh: str | None) -> Positions:
        """
        Returns the positions (indices in arrays over devices) of the devices of the
        mesh named `mesh`, in the mesh's order. If `mesh` is None, returns the position
        of the only device of a sequential program.
        """
        if mesh is None:
            return slice(0, 1 if self.is_sequential else 0)
        if mesh not in self._positions:
            self._positions[mesh] = as_positions(
                [self._position[d] for d in self.meshes[mesh].devices]
            )
        return self._positions[mesh]

    def device_ids(self, mesh: str | None) -> tuple[int, ...]:
        """
        Returns the device ids of the mesh named `mesh`, in the mesh's order. If `mesh`
        is None, returns the id of the only device of a sequential program.
        """
        if mesh is None:
            return self.devices[:1] if self.is_sequential else ()
        return self.meshes[mesh].devices

    def position_of(self, device: int) -> int:
        """
        Returns the position (the index in arrays over devices) of the device with id
        `device`.
        """
        return self._position[device]

    def bytes_of(self, value: SSAValue, op: Operation) -> int:
        """
        Returns the bytes of a value on each device that holds it, or 0 for a value that
        is not a tensor. Raises DistIRError, naming `op`, for a dynamic dimension or an
        impossible layout.
        """
        size = self.bytes_of_type(value.type, op)
        rows = self.expert_rows.get(value)
        return size if rows is None else ceil(size * rows.share(value, self.meshes))

    def load_of(self, value: SSAValue) -> float:
        """
        Returns the load of the busiest device that holds `value`, as a multiple of the
        mean load; 1 unless the value holds rows of experts.
        """
        rows = self.expert_rows.get(value)
        return 1.0 if rows is None else rows.share(value, self.meshes) / rows.taken

    def bytes_of_type(self, type_: Attribute, op: Operation) -> int:
        """
        Returns the bytes of a value of type `type_` on each device that holds it, or 0
        for a type that is not a tensor. Raises DistIRError, naming `op`, for a dynamic
        dimension or an impossible layout.
        """
        known = self._bytes.get(id(type_))
        if known is None:
            known = self._bytes[id(type_)] = type_, self._bytes_of_type(type_, op)
        return known[1]

    def _bytes_of_type(self, type_: Attribute, op: Operation) -> int:
        if not isinstance(type_, TensorType | UnrankedTensorType):
            return 0
        shape: tuple[int, ...] = ()
        if isinstance(type_, TensorType):
            shape = type_.get_shape()
        if isinstance(type_, UnrankedTensorType) or any(size < 0 for size in shape):
            raise DistIRError(
                f"{describe(op)}: cannot simulate a value of type {type_}: "
                f"{_origin(type_, op)}"
            )
        layout = layout_of(type_)
        if layout is None and not self.is_sequential:
            raise DistIRError(
                f"{describe(op)}: a value of type {type_} has no layout, though others "
                f"have one; run partition over the whole program"
            )
        if layout is not None:
            mesh = self.meshes[layout.mesh]
            check_layout(shape, layout, mesh, describe(op))
            shape = local_shape(shape, layout, mesh)
        try:
            each = bytes_per_element(type_.element_type)
        except ValueError as error:
            raise DistIRError(f"{describe(op)}: {error}") from error
        return ceil(prod(shape) * each)

    def shape_of_type(self, type_: Attribute) -> tuple[int, ...]:
        """
        Returns the shape of one device's part of a value of type `type_`, or `()` for a
        type that is not a tensor.
        """
        known = self._shapes.get(id(type_))
        if known is None:
            known = self._shapes[id(type_)] = type_, self._shape_of_type(type_)
        return known[1]

    def _shape_of_type(self, type_: Attribute) -> tuple[int, ...]:
        if not isinstance(type_, TensorType):
            return ()
        layout = layout_of(type_)
        if layout is None:
            return type_.get_shape()
        return local_shape(type_.get_shape(), layout, self.meshes[layout.mesh])

    def allocated(self, size: int, mesh: str | None) -> Bytes:
        """
        Returns the bytes that the devices of a mesh allocate for `size` bytes: whole
        blocks of their kind's `allocation_block`. The result is one number, or one
        number per device if the sizes of blocks differ.
        """
        kinds = self.hardware.kinds
        ids = self.device_ids(mesh)
        blocks = {k.allocation_block for k in self.hardware.distinct_kinds(ids)}
        if len(blocks) == 1:
            (block,) = blocks
            return -(-size // block) * block
        each = np.array([kinds[d].allocation_block for d in ids], dtype=np.int64)
        return -(-size // each) * each

    def groups(self, mesh: str, axes: tuple[str, ...]) -> Groups:
        """
        Returns the groups of a mesh's devices that communicate along `axes`. The
        devices of one group differ only in their coordinates along `axes`.
        """
        key = (mesh, axes)
        if key not in self._groups:
            self._groups[key] = Groups(
                _groups_along(self.meshes[mesh], axes), self._position, self.hardware
            )
        return self._groups[key]

    def group(self, devices: Sequence[int]) -> Groups:
        """Returns a single group of `devices`, in this order."""
        ids = np.asarray([devices], dtype=np.intp)
        return Groups(ids, self._position, self.hardware)

    def pairs(self, source: str, target: str) -> list[tuple[int, int]]:
        """
        Returns the pairs of devices at the same coordinates of the meshes `source` and
        `target`. Pairs of a device with itself are left out.
        """
        pairs = zip(self.device_ids(source), self.device_ids(target), strict=True)
        return [(s, t) for s, t in pairs if s != t]


class NotUniform(Exception):
    """Raised if the devices of a mesh do not all do the same at the same time."""


class UniformDeviceMap(DeviceMap):
    """
    A device map for programs in which all devices of a mesh do the same at the same
    time. One position (an index in arrays) stands for a whole mesh, because all of its
    devices behave alike.

    The devices of a mesh must be of one kind and belong to no other mesh. They wait
    only for each other, or all of them for another mesh. Raises NotUniform if a program
    does not meet these conditions.
    """

    def __init__(
        self, meshes: Mapping[str, Mesh], used: Sequence[str], hardware: Hardware
    ):
        super().__init__(meshes, used, hardware)
        if sum(len(meshes[name].devices) for name in used) != len(self.devices):
            raise NotUniform
        for name in used:
            if len(hardware.distinct_kinds(meshes[name].devices)) > 1:
                raise NotUniform
        self.index = {name: i for i, name in enumerate(used)}
        self._pairs: dict[tuple[str, str], tuple[int, int]] = {}

    def positions(self, mesh: str | None) -> Positions:
        """
        Returns the position (the index in arrays over meshes) of the mesh `mesh`, as a
        slice of length one.
        """
        if mesh is None:
            return super().positions(mesh)
        return slice(self.index[mesh], self.index[mesh] + 1)

    def groups(self, mesh: str, axes: tuple[str, ...]) -> Groups:
        """
        Returns one group that stands for all groups of the mesh along `axes`. Raises
        NotUniform if the groups communicate over different levels of links.
        """
        key = (mesh, axes)
        if key not in self._groups:
            groups = super().groups(mesh, axes)
            if len(set(groups.topologies)) > 1:
                raise NotUniform
            groups.positions = np.array([[self.index[mesh]]], dtype=np.intp)
            groups.topologies = groups.topologies[:1]
        return self._groups[key]

    def alike(self, first: str, second: str, axes: Iterable[tuple[str, ...]]) -> bool:
        """
        Whether the devices of two meshes do the same in the same time, if groups along
        each of `axes` communicate.
        """
        if first == second:
            return True
        meshes, kinds = self.meshes, self.hardware.distinct_kinds
        return (
            meshes[first].axes == meshes[second].axes
            and kinds(meshes[first].devices) == kinds(meshes[second].devices)
            and all(
                self.groups(first, a).topologies == self.groups(second, a).topologies
                for a in axes
            )
        )

    def group(self, devices: Sequence[int]) -> Groups:
        """
        Raises NotUniform, because the root of a group across meshes does not do the
        same work as the rest of the group.
        """
        raise NotUniform

    def pair(self, source: str, target: str) -> tuple[int, int]:
        """
        Returns a pair of devices that stands for all pairs of devices in a send from
        mesh `source` to mesh `target`. Raises NotUniform if the pairs communicate over
        different levels of links.
        """
        key = (source, target)
        if key not in self._pairs:
            pairs = self.pairs(source, target)
            if len({id(self.hardware.level_between(s, t)) for s, t in pairs}) > 1:
                raise NotUniform
            self._pairs[key] = pairs[0]
        return self._pairs[key]

    def expanded(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """
        Returns an array with one value per device, in the order of `devices`. `values`
        has one value per mesh.
        """
        found = np.empty(len(self.devices), dtype=values.dtype)
        for name, index in self.index.items():
            found[[self._position[d] for d in self.meshes[name].devices]] = values[
                index
            ]
        return found


class Groups:
    """
    Groups of devices that communicate at the same time. `ids` and `positions` have one
    row per group, with the ids of its devices and their indices in arrays over devices.
    `size` is the number of devices per group.
    """

    def __init__(
        self,
        ids: npt.NDArray[np.intp],
        position: Mapping[int, int],
        hardware: Hardware,
    ):
        self.ids = ids
        self.positions = np.vectorize(position.__getitem__, otypes=[np.intp])(ids)
        self._hardware = hardware
        self.size = ids.shape[1]

    @cached_property
    def topologies(self) -> list[Topology]:
        """The levels of links over which each group communicates."""
        rows = self.ids.tolist()
        each = [topology(row, self._hardware) for row in rows]
        return shared(rows, each, self._hardware)

    def distinct(self) -> Iterator[Topology]:
        """Yields the different topologies of the groups, without duplicates."""
        yield from dict.fromkeys(self.topologies)


def as_positions(indices: Sequence[int]) -> Positions:
    """
    Returns an index for NumPy arrays that selects the entries `indices`: a slice if
    they are consecutive, else an array.
    """
    first = indices[0]
    if list(indices) == list(range(first, first + len(indices))):
        return slice(first, first + len(indices))
    return np.asarray(indices, dtype=np.intp)


def _groups_along(mesh: Mesh, axes: tuple[str, ...]) -> npt.NDArray[np.intp]:
    """
    Returns the device ids of all groups along `axes`, one row per group. The first axis
    is major.
    """
    names = [name for name, _ in mesh.axes]
    size = prod(mesh.size(axis) for axis in axes)
    grid = np.asarray(mesh.devices, dtype=np.intp).reshape([n for _, n in mesh.axes])
    last = range(grid.ndim - len(axes), grid.ndim)
    moved = np.moveaxis(grid, [names.index(axis) for axis in axes], list(last))
    return np.ascontiguousarray(moved).reshape(-1, size)


def _origin(type_: Attribute, op: Operation) -> str:
    """
    Returns a text, for an error message, on the reason why a size in `type_` is
    unknown. `type_` is the type of an operand or result of `op`.
    """
    arguments = op.body.block.args if isinstance(op, FuncOp) else ()
    values: list[SSAValue] = [*op.operands, *op.results, *arguments]
    return origin_of_unknown(next(v for v in values if v.type == type_))
