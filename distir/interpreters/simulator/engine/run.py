"""
A program that is compiled for the devices of its meshes, and can be executed any number
of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp

from distir.dialects.dist import layout_of
from distir.dialects.host import is_on_host, on_device
from distir.interpreters.simulator.costs.hardware import DeviceKind
from distir.interpreters.simulator.engine.compiled import (
    Allocation,
    CompiledFunction,
    PlacedFunction,
)
from distir.interpreters.simulator.engine.compiler import Compiler
from distir.interpreters.simulator.engine.device_map import DeviceMap, UniformDeviceMap
from distir.interpreters.simulator.engine.following import FollowedMachine, Follower
from distir.interpreters.simulator.engine.machine import Machine, Observer
from distir.interpreters.simulator.engine.pytorch import gradient_buckets
from distir.interpreters.simulator.engine.reserved import Reserved
from distir.interpreters.simulator.engine.uniform import UniformMachine
from distir.program import functions


@dataclass(frozen=True)
class DeviceGroup:
    """
    Devices that do the same work: `devices` holds the ids of the devices, and `meshes`
    the names of the meshes that contain these devices. The first device represents the
    group. `index` is the first device's index in the lists of a `Simulation`, and
    `position` its index in the arrays of a machine.
    """

    meshes: tuple[str, ...]
    devices: tuple[int, ...]
    index: int
    position: int

    @property
    def name(self) -> str:
        """The names of the meshes, or the device of a sequential program, as text."""
        return ", ".join(f"@{m}" for m in self.meshes) or f"device {self.devices[0]}"


def execute(
    machine: Machine,
    compiled: CompiledFunction,
    arguments: Sequence[Allocation],
    functions: Sequence[PlacedFunction],
    device_map: DeviceMap,
    reserved: Reserved,
) -> Machine:
    """
    Executes an entry function on `machine`, and returns the machine with its final
    clocks and memory. `arguments` holds the memory of the program's arguments, and
    `reserved` the memory that is in use throughout. The constants of all `functions` of
    the program are allocated.
    """
    machine.live += reserved.total
    contention = np.array([kind.contention for kind in kinds_of(device_map)])
    if contention.any():
        machine.contention = contention
    held = [machine.allocate(allocation) for allocation in arguments]
    for index, buffer in enumerate(held):
        if index not in compiled.given_up:
            buffer.holders += 1  # arguments live throughout
    for function, mesh in functions:
        where = device_map.positions(mesh) if mesh is not None else None
        machine.hold_constants(function, where)
    machine.note_peak()
    machine.held = machine.live.copy()
    for result in machine.run(compiled, held):
        machine.wait_for(result)
    return machine


def kinds_of(device_map: DeviceMap) -> list[DeviceKind]:
    """
    Returns the kind of each device, or of the devices of each mesh, in the order of a
    machine's arrays.
    """
    if isinstance(device_map, UniformDeviceMap):
        ids = [device_map.device_ids(name)[0] for name in device_map.index]
    else:
        ids = list(device_map.devices)
    return [device_map.hardware.kinds[device] for device in ids]


@dataclass
class Run:
    """
    A program compiled for the devices that hold its values: the module and its entry
    function, the devices, the compiler, the compiled entry function, and the memory of
    the program's arguments. Each execution returns a machine in its final state.
    """

    module: ModuleOp
    entry: FuncOp
    device_map: DeviceMap
    compiler: Compiler
    compiled: CompiledFunction
    arguments: list[Allocation]

    @staticmethod
    def of(module: ModuleOp, entry: FuncOp, device_map: DeviceMap) -> Run:
        """
        Compiles the function `entry` of a module and all functions that it calls.
        Raises DistIRError if the simulator cannot run one of these functions, for
        example because of an op of a per-rank program.
        """
        compiler = Compiler(functions(module), device_map)
        compiled = compiler.compile(entry)
        arguments = [
            compiler.allocation(arg, i, entry)
            for i, arg in enumerate(entry.body.block.args)
        ]
        return Run(module, entry, device_map, compiler, compiled, arguments)

    @property
    def positions(self) -> int:
        """
        The length of the machine's arrays: the number of meshes if the devices of each
        mesh do the same, else the number of devices.
        """
        return len(kinds_of(self.device_map))

    def simulate(self) -> Machine:
        """
        Executes the program. If all devices of each mesh do the same, calls are
        replaced by their summaries.
        """
        uniform = isinstance(self.device_map, UniformDeviceMap)
        kind = UniformMachine if uniform else Machine
        return self._execute(kind(self.positions))

    def observe(self, observer: Observer) -> Machine:
        """
        Executes every op of the program, and calls `observer` with each execution.
        """
        return self._execute(Machine(self.positions, observer))

    def follow(self, *followers: Follower) -> Machine:
        """
        Executes every op of the program, and reports each op and each change of memory
        to `followers`.
        """
        return self._execute(FollowedMachine(self.positions, followers, self.entry))

    @property
    def host_bytes(self) -> npt.NDArray[np.int64]:
        """
        The bytes of the program's arguments in the host's memory, for each device, or
        for each mesh if the devices of each mesh do the same.
        """
        found = np.zeros(self.positions, dtype=np.int64)
        for arg in self.entry.args:
            if isinstance(arg.type, TensorType) and is_on_host(arg.type):
                layout, type_ = layout_of(arg.type), on_device(arg.type)
                where = self.device_map.positions(layout.mesh if layout else None)
                found[where] += self.device_map.bytes_of_type(type_, self.entry)
        return found

    @cached_property
    def reserved(self) -> Reserved:
        """
        The bytes that libraries and buckets of gradients take throughout, for each
        device, or for each mesh if the devices of each mesh do the same.
        """
        types = [arg.type for arg in self.entry.args]
        buckets = gradient_buckets(self.entry, types, self.arguments, self.device_map)
        return Reserved.of(self.device_map, self._functions, self.positions, buckets)

    @property
    def _functions(self) -> list[PlacedFunction]:
        return [PlacedFunction(f) for f in self.compiler.compiled_functions]

    def _execute(self, machine: Machine) -> Machine:
        return execute(
            machine,
            self.compiled,
            self.arguments,
            self._functions,
            self.device_map,
            self.reserved,
        )

    def groups(self, rows: Sequence[object]) -> list[DeviceGroup]:
        """
        Returns the devices in groups that do the same work. If the devices of each mesh
        are alike, there is one group per mesh. Otherwise, the devices of a group belong
        to the same meshes and have equal entries in `rows`, which has one entry per
        device, in the order of their ids.
        """
        device_map = self.device_map
        at = {device: i for i, device in enumerate(device_map.devices)}
        if isinstance(device_map, UniformDeviceMap):
            return [
                DeviceGroup((name,), ids, at[ids[0]], position)
                for name, position in device_map.index.items()
                for ids in (device_map.device_ids(name),)
            ]
        meshes: dict[int, list[str]] = {device: [] for device in device_map.devices}
        for name in device_map.used:
            for device in device_map.device_ids(name):
                meshes[device].append(name)
        alike: dict[tuple[tuple[str, ...], object], list[int]] = {}
        for device, row in zip(device_map.devices, rows, strict=True):
            alike.setdefault((tuple(meshes[device]), row), []).append(device)
        return [
            DeviceGroup(names, tuple(devices), at[devices[0]], at[devices[0]])
            for (names, _), devices in alike.items()
        ]
