"""
Memory that libraries and the software that trains keep on a device throughout, in
addition to the values of the program.

For PyTorch with CUDA, this memory includes contexts, the workspaces of matrix products,
and the buffers of each NCCL communicator. The op `device.kind` declares the size of
this memory; by default the size is 0, and only the program's values take memory. The profile tells
whether gradients are reduced in buckets (`distir.interpreters.simulator.engine.pytorch`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import SliceOp
from distir.dialects.dist import SendOp, layout_of
from distir.interpreters.simulator.engine.compiled import Allocation, PlacedFunction
from distir.interpreters.simulator.engine.device_map import DeviceMap
from distir.sharding.exchanges import exchanged_axes


@dataclass(frozen=True)
class Reserved:
    """
    Memory that is in use throughout, in bytes. `libraries` is the memory of libraries,
    `communicators` the memory of communicators, and `buckets` the memory in which
    gradients are reduced. Each has one number per position: a device, or a mesh of
    equal devices.
    """

    libraries: npt.NDArray[np.int64]
    communicators: npt.NDArray[np.int64]
    buckets: npt.NDArray[np.int64]

    @property
    def total(self) -> npt.NDArray[np.int64]:
        """
        The sum of all these bytes, for each device, or for each mesh of equal devices.
        """
        return self.libraries + self.communicators + self.buckets

    @staticmethod
    def of(
        device_map: DeviceMap,
        used: Sequence[PlacedFunction],
        positions: int,
        buckets: Sequence[Allocation],
    ) -> Reserved:
        """
        Returns the bytes that libraries keep for a program that consists of the
        functions `used`. The result has `positions` numbers, one per device or one per
        mesh of equal devices. The buffers of a group of devices that communicates are
        counted once on each of its devices, however many ops the group runs. `buckets`
        is the memory in which gradients are reduced.
        """
        libraries = np.zeros(positions, dtype=np.int64)
        each = np.zeros(positions, dtype=np.int64)
        kinds = device_map.hardware.kinds
        for name in device_map.used or (None,):
            where, ids = device_map.positions(name), device_map.device_ids(name)
            here = np.arange(positions)[where]
            # If a position stands for a mesh, all devices of the mesh are of one kind.
            for position, device in zip(here, ids, strict=False):
                libraries[position] = kinds[device].library_memory
                each[position] = kinds[device].communicator_memory
        count = np.zeros(positions, dtype=np.int64)
        if each.any():
            for meshes in dict.fromkeys(_communicators(device_map, used)):
                for mesh in meshes[0]:
                    count[device_map.positions(mesh)] += 1
        reduced = np.zeros(positions, dtype=np.int64)
        for _, where, size in buckets:
            reduced[where] += size
        return Reserved(libraries, count * each, reduced)


_Communicator = tuple[tuple[str, ...], tuple[str, ...]]
"""
The meshes whose devices form groups that communicate, and the axes of these groups.
"""


def _communicators(
    device_map: DeviceMap, used: Sequence[PlacedFunction]
) -> Iterator[_Communicator]:
    """
    Yields the communicator of each op that communicates: groups along axes of a mesh,
    or groups between two meshes.
    """
    for compiled, place in used:
        for step in compiled.steps:
            op = step.op
            if isinstance(op, SendOp):
                layouts = layout_of(op.source), layout_of(op.result)
                yield tuple(sorted(x.mesh for x in layouts if x is not None)), ()
            elif isinstance(op, CollectiveOp) and not isinstance(op, SliceOp):
                sides = [layout_of(op.source), layout_of(op.result)]
                names = [layout.mesh for layout in sides if layout is not None]
                mesh = place or max(names, key=lambda m: len(device_map.device_ids(m)))
                sizes = device_map.meshes[mesh].sizes
                if prod(sizes[axis] for axis in op.axis_names) > 1:
                    yield (mesh,), op.axis_names
            elif axes := exchanged_axes(op):
                layout = layout_of(op.operands[0])
                assert layout is not None
                yield (place or layout.mesh,), axes
