"""The result of a simulation, and its timeline as a file of Chrome trace events."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from distir.errors import DistIRError
from distir.interpreters.simulator.engine.compiled import CommunicationStep
from distir.interpreters.simulator.engine.machine import Execution, Observer
from distir.interpreters.simulator.engine.run import DeviceGroup, Run
from distir.interpreters.simulator.engine.scopes import full_scope
from distir.system.output_files import replaced_file, write_text

_MICROSECONDS = 1e6


class TraceWriter:
    """
    Writes a timeline to an open file in Chrome's trace format. Call `record` with every
    op as it runs, and `close` at the end. `devices` holds the device id at each index
    of the machine's arrays; `cluster` names the processes.

    The file has one complete event per op and device, with times in microseconds. The
    process of an event is the device, and its name is the op and the op's scope. The
    thread is 1 for asynchronous collectives, 2 for asynchronous sends, and 0 for all
    other ops. Ops that take no time are left out.
    """

    def __init__(self, file: TextIO, devices: Sequence[int], cluster: str):
        self._file = file
        self._devices = np.asarray(devices)
        self._separator = "\n"
        file.write('{"displayTimeUnit": "ms", "traceEvents": [')
        for device in devices:
            name = {"name": f"device {device} of {cluster}"}
            self._write(
                {"name": "process_name", "ph": "M", "pid": device, "args": name}
            )

    def _write(self, event: dict[str, Any]) -> None:
        self._file.write(self._separator + json.dumps(event))
        self._separator = ",\n"

    def record(self, execution: Execution) -> None:
        """Writes the events of one execution of an op, one for each of its devices."""
        step, path, positions, start, seconds = execution
        scope = full_scope(step.op, path)
        calls = [call.callee.name for call in path]
        track, category = 0, "compute"
        if isinstance(step, CommunicationStep):
            category = "communication"
            track = step.is_asynchronous * (1 if step.is_collective else 2)
        event: dict[str, Any] = {
            "name": f"{step.op.name} {scope}".strip(),
            "cat": category,
            "ph": "X",
            "tid": track,
            "args": {"scope": scope, "calls": " > ".join(calls)},
        }
        begun = json.dumps(event)[:-1]
        devices = self._devices[positions].tolist()
        starts = (start * _MICROSECONDS).tolist()
        durations = np.broadcast_to(np.multiply(seconds, _MICROSECONDS), start.shape)
        for device, begin, duration in zip(
            devices, starts, durations.tolist(), strict=True
        ):
            if duration > 0:
                self._file.write(
                    f'{self._separator}{begun}, "pid": {device}, "ts": {begin!r}, '
                    f'"dur": {duration!r}}}'
                )
                self._separator = ",\n"

    def close(self) -> None:
        """Ends the list of events. The file stays open."""
        self._file.write("\n]}\n")


@dataclass(frozen=True)
class Simulation:
    """
    A simulated step. Lists have one entry per device that the program uses, in the
    order of `devices` (device ids).

    - `cluster`, `profiles`: the names of the cluster and of the profiles, if any;
      `unknown_links`: the levels of links whose kind is in no profile, so that their
      figures come from data sheets;
    - `step_time_s`: the seconds until the last device is done;
    - `throughput_samples_per_s`: the size of the first dimension of the first input,
      divided by the step time; 0 if the program has no such dimension, or if the step
      takes no time;
    - `peak_memory_bytes`: the most bytes of values and libraries at any time;
      `reserved_memory_bytes`: the bytes that the software reserves on the device for
      these values and libraries, including fragments of the memory allocator (without a
      profile, no fragments are counted); `memory_bytes`: the bytes that the device has;
    - `host_bytes`: the bytes of a device's arguments in the memory of its host;
      `host_memory_bytes`: the most bytes that a device may use there, or None if the
      cluster does not give this number;
    - `communication_bytes`: the bytes that each device sends;
    - `flops`: the floating-point operations of contractions, including recomputed ones;
      all other ops are bound by memory and are not counted;
    - `seconds_at_peak`: the seconds that these operations would take at the device's
      peak for their element types; `recomputed_at_peak`: the part of these seconds in
      which the backward pass repeats work of the forward pass;
    - `compute_s`, `communication_s`, `idle_s`: add up to the step time; communication
      that runs while a device computes is not included;
    - `transit_s`: the part of `idle_s` in which the device waits for a value that is
      being sent at that time;
    - `ops`: the number of ops that ran, in every call of a function, counted once for
      all devices.
    """

    cluster: str
    profiles: list[str]
    devices: list[int]
    step_time_s: float
    throughput_samples_per_s: float
    peak_memory_bytes: list[int]
    reserved_memory_bytes: list[int]
    memory_bytes: list[int]
    host_bytes: list[int]
    host_memory_bytes: list[int | None]
    communication_bytes: list[int]
    flops: list[float]
    seconds_at_peak: list[float]
    recomputed_at_peak: list[float]
    compute_s: list[float]
    communication_s: list[float]
    transit_s: list[float]
    idle_s: list[float]
    ops: int
    replay: Callable[[Observer], object] = field(repr=False, compare=False)
    run: Run = field(repr=False, compare=False)
    unknown_links: list[str] = field(default_factory=list[str])

    @property
    def exposed_communication_s(self) -> list[float]:
        """
        The seconds in which each device communicates, or waits for a value in transit,
        without computing.
        """
        pairs = zip(self.communication_s, self.transit_s, strict=True)
        return [communicating + transit for communicating, transit in pairs]

    @property
    def waiting_s(self) -> list[float]:
        """
        The seconds in which each device waits for other devices. `waiting_s`,
        `compute_s` and `exposed_communication_s` add up to the step time.
        """
        pairs = zip(self.idle_s, self.transit_s, strict=True)
        return [idle - transit for idle, transit in pairs]

    @property
    def mfu(self) -> float:
        """
        The model FLOPs utilisation, averaged over devices: the time that the
        contractions of the forward and the backward pass would take at the devices'
        peak, as a fraction of the step time. Recomputed contractions are left out.
        """
        pairs = zip(self.seconds_at_peak, self.recomputed_at_peak, strict=True)
        return self._share([all_of_it - again for all_of_it, again in pairs])

    @property
    def hfu(self) -> float:
        """
        The hardware FLOPs utilisation, averaged over devices: the time that all
        contractions, including recomputed ones, would take at the devices' peak, as a
        fraction of the step time.
        """
        return self._share(self.seconds_at_peak)

    @property
    def exposed_communication(self) -> float:
        """
        The mean of `exposed_communication_s` over devices, as a fraction of the step
        time.
        """
        return self._share(self.exposed_communication_s)

    @property
    def bubble_fraction(self) -> float:
        """
        The mean of `waiting_s` over devices, as a fraction of the step time. In a
        pipeline, the devices wait in the bubble; in programs without a pipeline,
        devices wait for slower devices.
        """
        return self._share(self.waiting_s)

    def _share(self, seconds: Sequence[float]) -> float:
        whole = self.step_time_s * len(self.devices)
        return sum(seconds) / whole if whole else 0.0

    @cached_property
    def groups(self) -> list[DeviceGroup]:
        """The devices of the program, in groups that do the same work."""
        rows = zip(
            self.peak_memory_bytes,
            self.communication_bytes,
            self.flops,
            self.compute_s,
            self.communication_s,
            self.transit_s,
            self.idle_s,
            strict=True,
        )
        return self.run.groups(list(rows))

    @property
    def fits(self) -> bool:
        """Whether every device has enough memory, on the device and in its host."""
        return not self.too_small and not self.hosts_too_small

    @property
    def too_small(self) -> list[int]:
        """The ids of the devices that need more memory than they have."""
        return [
            device
            for device, reserved, memory in zip(
                self.devices, self.reserved_memory_bytes, self.memory_bytes, strict=True
            )
            if reserved > memory
        ]

    @property
    def hosts_too_small(self) -> list[int]:
        """
        The ids of the devices that need more of their host's memory than they may use.
        """
        return [
            device
            for device, used, memory in zip(
                self.devices, self.host_bytes, self.host_memory_bytes, strict=True
            )
            if memory is not None and used > memory
        ]

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON data."""
        return {
            "step_time_s": self.step_time_s,
            "throughput_samples_per_s": self.throughput_samples_per_s,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "exposed_communication": self.exposed_communication,
            "bubble_fraction": self.bubble_fraction,
            "peak_memory_bytes": self.peak_memory_bytes,
            "reserved_memory_bytes": self.reserved_memory_bytes,
            "communication_bytes": self.communication_bytes,
            "flops": self.flops,
            "ops": self.ops,
            "cluster": self.cluster,
            "profiles": self.profiles,
            "unknown_links": self.unknown_links,
            "devices": self.devices,
            "memory_bytes": self.memory_bytes,
            "host_bytes": self.host_bytes,
            "fits": self.fits,
            "compute_s": self.compute_s,
            "communication_s": self.communication_s,
            "exposed_communication_s": self.exposed_communication_s,
            "idle_s": self.idle_s,
            "waiting_s": self.waiting_s,
        }

    def write_json(self, path: str | Path) -> None:
        """
        Writes the result of `to_json` to a file. Raises DistIRError if the file cannot
        be written.
        """
        write_json(path, self.to_json())

    def write_trace(self, path: str | Path) -> None:
        """
        Writes the timeline as Chrome trace events (chrome://tracing, Perfetto). The
        program is simulated once more, and events are written as ops run. Raises
        DistIRError if the file cannot be written.
        """
        try:
            with replaced_file(path) as file:
                writer = TraceWriter(file, self.devices, self.cluster)
                self.replay(writer.record)
                writer.close()
        except OSError as error:
            raise DistIRError(f"cannot write {path}: {error.strerror}") from error


def write_json(path: str | Path, data: Mapping[str, Any]) -> None:
    """
    Writes `data` to a file as JSON. Raises DistIRError if the file cannot be written.
    """
    try:
        write_text(path, json.dumps(data, indent=2) + "\n")
    except OSError as error:
        raise DistIRError(f"cannot write {path}: {error.strerror}") from error


def report(simulation: Simulation) -> str:
    """Returns a simulation as plain text, with one line per device."""
    s = simulation
    lines = [
        f"step time {s.step_time_s:.6g} s, {s.throughput_samples_per_s:.6g} samples/s, "
        f"{s.ops} ops on {len(s.devices)} of the devices of @{s.cluster}",
        "device  peak memory [B]  of [B]  sent [B]  FLOPs  compute [s]  communication [s]  idle [s]",
    ]
    rows = zip(
        s.devices,
        s.peak_memory_bytes,
        s.memory_bytes,
        s.communication_bytes,
        s.flops,
        s.compute_s,
        s.communication_s,
        s.idle_s,
        strict=True,
    )
    lines += [
        f"{device}  {peak}  {memory}  {sent}  {flops:.6g}  {compute:.6g}  {busy:.6g}  {idle:.6g}"
        for device, peak, memory, sent, flops, compute, busy, idle in rows
    ]
    again = f" (hfu {s.hfu:.6g})" if any(s.recomputed_at_peak) else ""
    lines.append(
        f"mfu {s.mfu:.6g}{again}, exposed communication {s.exposed_communication:.6g}, "
        f"bubble {s.bubble_fraction:.6g} of the step time"
    )
    if s.reserved_memory_bytes != s.peak_memory_bytes:
        lines.append(f"at most {max(s.reserved_memory_bytes)} B of a device reserved")
    if any(s.host_bytes):
        lines.append(f"at most {max(s.host_bytes)} B of a device in its host's memory")
    if s.too_small:
        lines.append(f"does not fit into the memory of devices {s.too_small}")
    if s.hosts_too_small:
        lines.append(
            f"does not fit into the memory of the hosts of devices {s.hosts_too_small}"
        )
    return "\n".join(lines)
