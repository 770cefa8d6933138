"""Simulates a program on a cluster, and adds up the ops that ran."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from distir.dialects.device import ClusterOp, MeshOp
from distir.dialects.dist import layout_of
from distir.dialects.dist_attributes import RECOMPUTED
from distir.errors import DistIRError
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.interpreters.simulator.engine.compiled import (
    CallStep,
    CommunicationStep,
    CompiledFunction,
    ComputationStep,
    OpStep,
)
from distir.interpreters.simulator.engine.device_map import (
    DeviceMap,
    NotUniform,
    UniformDeviceMap,
)
from distir.interpreters.simulator.engine.machine import Observer
from distir.interpreters.simulator.engine.run import Run
from distir.interpreters.simulator.profiles.files import load_profiles
from distir.interpreters.simulator.profiles.profile import Profile
from distir.interpreters.simulator.simulation import Simulation
from distir.program import batch_size, entry_function
from distir.sharding.mesh import meshes


class Totals:
    """
    Sums over all ops that ran. `ops` is the number of ops, counted once for all
    devices. The other fields have one entry per device:

    - `compute`: the seconds of computation;
    - `communication`: the seconds of communication that occupies the device;
    - `sent`: the bytes sent;
    - `flops`: the floating-point operations; `seconds_at_peak`: their seconds at the
      device's peak; `recomputed_at_peak`: the part of these seconds that repeats the
      forward pass (`dist.recomputed`).
    """

    def __init__(self, devices: int):
        self.compute = np.zeros(devices)
        self.communication = np.zeros(devices)
        self.sent = np.zeros(devices)
        self.flops = np.zeros(devices)
        self.seconds_at_peak = np.zeros(devices)
        self.recomputed_at_peak = np.zeros(devices)
        self.ops = 0

    @staticmethod
    def of(runs: Mapping[CompiledFunction, int], devices: int) -> Totals:
        """
        Returns the sums over a run on a machine with `devices` devices (or one per
        mesh, if the machine simulates one device of each). `runs` gives the number of
        runs of each function. The ops of a called function count for that function
        only, not for its callers.
        """
        total = Totals(devices)
        for compiled, count in runs.items():
            once = Totals(devices)
            once._add_steps(compiled)
            total.compute += count * once.compute
            total.communication += count * once.communication
            total.sent += count * once.sent
            total.flops += count * once.flops
            total.seconds_at_peak += count * once.seconds_at_peak
            total.recomputed_at_peak += count * once.recomputed_at_peak
            total.ops += count * once.ops
        return total

    def _add_steps(self, compiled: CompiledFunction) -> None:
        for step in compiled.steps:
            if isinstance(step, CallStep) and RECOMPUTED in step.op.attributes:
                self._add_recomputed(step.callee)
            if isinstance(step, OpStep):
                self.ops += 1
            if isinstance(step, CommunicationStep):
                for transfer in step.transfers:
                    self.sent[transfer.positions] += transfer.sent
                    if not step.is_asynchronous:
                        seconds = np.reshape(transfer.seconds, (-1, 1))
                        self.communication[transfer.positions] += seconds
            elif isinstance(step, ComputationStep):
                self.compute[step.positions] += step.seconds
                if step.flops:
                    self.flops[step.positions] += step.flops
                    self.seconds_at_peak[step.positions] += step.seconds_at_peak
                    again = step.recomputed * step.seconds_at_peak
                    self.recomputed_at_peak[step.positions] += again

    def _add_recomputed(self, called: CompiledFunction) -> None:
        """
        Adds the work of a call that repeats a part of the forward pass. Ops of the
        called function that are marked as recomputed themselves are left out.
        """
        for step in called.steps:
            if isinstance(step, CallStep) and RECOMPUTED not in step.op.attributes:
                self._add_recomputed(step.callee)
            elif isinstance(step, ComputationStep):
                again = (1 - step.recomputed) * step.seconds_at_peak
                self.recomputed_at_peak[step.positions] += again


def simulate(
    module: ModuleOp,
    cluster: ClusterOp | None = None,
    *,
    flat: bool = False,
    profiles: Sequence[str | Path | Profile] = (),
) -> Simulation:
    """
    Simulates one run of a distributed program, or of a sequential one on device 0.

    If all devices of each mesh do the same at the same time, one device is simulated
    for all, and calls of a function are summarised
    (`distir.interpreters.simulator.engine.summaries`). With `flat`, every op is
    executed on every device; the result is the same.

    `cluster` replaces the cluster that the program's meshes name. A program without
    meshes uses the only `device.cluster` of its module.

    `profiles` give the performance of the cluster's kinds of devices in practice, one
    profile per kind. Each is a `Profile`, the name of a built-in profile, a file, or
    "auto" for the profiles that the cluster names. Without profiles, devices and links
    perform as in their data sheets.

    Raises DistIRError for a program that cannot be simulated.
    """
    names = _used_meshes(module)
    found = meshes(module)
    for name in names:
        if name not in found:
            raise DistIRError(f"there is no device.mesh @{name}")
    cluster = cluster or _cluster_among(module, names)
    hardware = Hardware.of(cluster, load_profiles(profiles, cluster))
    for name in names:
        if max(found[name].devices) >= len(hardware.kinds):
            raise DistIRError(
                f"mesh @{name} uses device {max(found[name].devices)}, but cluster "
                f"@{hardware.name} has only {len(hardware.kinds)} devices; use a larger "
                f"cluster, or grow it with --devices"
            )
    entry = entry_function(module)

    def flat_run() -> Run:
        return Run.of(module, entry, DeviceMap(found, names, hardware))

    if not flat and names:
        try:
            run = Run.of(module, entry, UniformDeviceMap(found, names, hardware))
        except NotUniform:
            run = flat_run()
    else:
        run = flat_run()

    def replay(observer: Observer) -> object:
        return flat_run().observe(observer)

    return _result(run, replay)


def _result(run: Run, replay: Callable[[Observer], object]) -> Simulation:
    machine, device_map = run.simulate(), run.device_map
    totals = Totals.of(machine.runs, machine.devices)
    step_time = machine.end
    batch = batch_size(run.entry) or 0
    idle = machine.idle + (step_time - machine.clock)

    def listed(values: npt.NDArray[Any]) -> list[Any]:
        if isinstance(device_map, UniformDeviceMap):
            values = device_map.expanded(values)
        return values.tolist()

    peak, kinds = listed(machine.peak), device_map.hardware.kinds
    return Simulation(
        cluster=device_map.hardware.name,
        profiles=device_map.hardware.profile_names,
        devices=list(device_map.devices),
        step_time_s=step_time,
        throughput_samples_per_s=batch / step_time if step_time else 0.0,
        peak_memory_bytes=peak,
        reserved_memory_bytes=[
            kinds[device].reserved(most, held)
            for device, most, held in zip(
                device_map.devices, peak, listed(machine.held), strict=True
            )
        ],
        memory_bytes=[kinds[device].memory for device in device_map.devices],
        host_bytes=listed(run.host_bytes),
        host_memory_bytes=[kinds[device].host_memory for device in device_map.devices],
        communication_bytes=[round(b) for b in listed(totals.sent)],
        flops=listed(totals.flops),
        seconds_at_peak=listed(totals.seconds_at_peak),
        recomputed_at_peak=listed(totals.recomputed_at_peak),
        compute_s=listed(totals.compute + machine.streams.slowed),
        communication_s=listed(totals.communication + machine.streams.shared),
        transit_s=listed(machine.transit),
        idle_s=listed(idle),
        ops=totals.ops,
        replay=replay,
        run=run,
        unknown_links=device_map.hardware.unknown_links,
    )


def _used_meshes(module: ModuleOp) -> list[str]:
    """
    Returns the distinct names of the meshes in the layouts of the program's values.
    """
    names: dict[str, None] = {}
    seen: set[int] = set()
    functions = [op for op in module.body.block.ops if isinstance(op, FuncOp)]
    blocks = [
        function.body.block for function in functions if not function.is_declaration
    ]
    values: list[SSAValue] = [arg for block in blocks for arg in block.args]
    values += [result for block in blocks for op in block.ops for result in op.results]
    for value in values:
        if id(value.type) not in seen:
            seen.add(id(value.type))
            layout = layout_of(value)
            if layout is not None:
                names[layout.mesh] = None
    return list(names)


def cluster_of(module: ModuleOp) -> ClusterOp:
    """
    Returns the cluster that a program runs on: the cluster of the meshes that its
    values name, or, without such meshes, the only cluster of the module. Raises
    DistIRError unless there is exactly one such cluster.
    """
    return _cluster_among(module, _used_meshes(module))


def _cluster_among(module: ModuleOp, names: list[str]) -> ClusterOp:
    """
    Returns the cluster of the meshes `names`, or the only cluster of the module if
    `names` is empty. Raises DistIRError unless there is exactly one such cluster.
    """
    ops = list(module.body.block.ops)
    clusters = {op.sym_name.data: op for op in ops if isinstance(op, ClusterOp)}
    wanted = {
        op.cluster.string_value()
        for op in ops
        if isinstance(op, MeshOp) and op.sym_name.data in names
    } or set(clusters)
    if len(wanted) != 1:
        raise DistIRError(
            "the program is not distributed and names no cluster; give one, with "
            "`distir simulate --cluster dgx-a100 -d 8` or the pass's option cluster=dgx-a100"
            if not wanted
            else f"a program runs on one cluster, but this one names "
            f"{', '.join(sorted('@' + w for w in wanted))}"
        )
    (name,) = wanted
    if name not in clusters:
        raise DistIRError(
            f"the program does not hold the device.cluster @{name} that its meshes name; "
            f"add it, or give a cluster"
        )
    return clusters[name]
