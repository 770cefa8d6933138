"""What a simulation found out about a program."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distir.errors import DistIRError
from distir.interpreters.cost.machine import Observer
from distir.interpreters.cost.trace import TraceWriter


@dataclass(frozen=True)
class Simulation:
    """
    A simulated step. Lists have one entry per device that the program uses, in the order
    of `devices` (device ids).

    - `step_time_s`: until the last device is done;
    - `throughput_samples_per_s`: size of the first dimension of the first input over the
      step time; 0 without such an input, or when the step takes no time;
    - `peak_memory_bytes`, `memory_bytes`: needed, and there on the device;
    - `communication_bytes`: what each device sends;
    - `flops`: floating-point operations of its contractions, what it computes again
      counted again; other ops are bound by memory and count none;
    - `compute_s`, `communication_s`, `idle_s`: add up to the step time; communication
      that goes on while a device computes is not in them;
    - `ops`: ops that ran, each call of a function counted, once for all devices.
    """

    cluster: str
    devices: list[int]
    step_time_s: float
    throughput_samples_per_s: float
    peak_memory_bytes: list[int]
    memory_bytes: list[int]
    communication_bytes: list[int]
    flops: list[float]
    compute_s: list[float]
    communication_s: list[float]
    idle_s: list[float]
    ops: int
    replay: Callable[[Observer], object] = field(repr=False, compare=False)

    @property
    def fits(self) -> bool:
        """Whether every device has enough memory."""
        return not self.too_small

    @property
    def too_small(self) -> list[int]:
        """The devices whose memory does not suffice."""
        return [
            device
            for device, peak, memory in zip(
                self.devices, self.peak_memory_bytes, self.memory_bytes, strict=True
            )
            if peak > memory
        ]

    def to_json(self) -> dict[str, Any]:
        """The result as JSON data."""
        return {
            "step_time_s": self.step_time_s,
            "throughput_samples_per_s": self.throughput_samples_per_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "communication_bytes": self.communication_bytes,
            "flops": self.flops,
            "ops": self.ops,
            "cluster": self.cluster,
            "devices": self.devices,
            "memory_bytes": self.memory_bytes,
            "fits": self.fits,
            "compute_s": self.compute_s,
            "communication_s": self.communication_s,
            "idle_s": self.idle_s,
        }

    def write_json(self, path: str | Path) -> None:
        """Writes `to_json` to a file. Raises DistIRError."""
        try:
            Path(path).write_text(json.dumps(self.to_json(), indent=2) + "\n", "utf-8")
        except OSError as error:
            raise DistIRError(f"cannot write {path}: {error.strerror}") from error

    def write_trace(self, path: str | Path) -> None:
        """
        Writes the timeline as Chrome trace events (chrome://tracing, Perfetto), event by
        event while the program is simulated once more. Raises DistIRError.
        """
        try:
            with open(path, "w", encoding="utf-8") as file:
                writer = TraceWriter(file, self.devices, self.cluster)
                self.replay(writer.record)
                writer.close()
        except OSError as error:
            raise DistIRError(f"cannot write {path}: {error.strerror}") from error


def report(simulation: Simulation) -> str:
    """The simulation as plain text, a line per device."""
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
    if not s.fits:
        lines.append(f"does not fit into the memory of devices {s.too_small}")
    return "\n".join(lines)
