"""Compares the time and the memory of two programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distir.interpreters.simulator.engine.run import DeviceGroup
from distir.interpreters.simulator.reports.memory_report import MemoryRecorder
from distir.interpreters.simulator.reports.time_report import (
    TICKS_PER_SECOND,
    Cause,
    Spent,
    TimeRecorder,
)
from distir.interpreters.simulator.reports.value_kinds import KINDS
from distir.interpreters.simulator.simulation import Simulation


@dataclass(frozen=True)
class Side:
    """
    One of the two programs that are compared.

    - `end`: the time of its step in ticks (femtoseconds);
    - `busiest`: the group of devices that waits the least for other devices; `spent`,
      `total`: the time of this group, by cause and in all;
    - `fullest`: the group with the highest peak of memory; `peak`, `by_kind`: the bytes
      at this peak, in all and by kind of value.
    """

    end: int
    busiest: DeviceGroup
    spent: dict[Cause, Spent]
    total: Spent
    fullest: DeviceGroup
    peak: int
    by_kind: dict[str, int]

    @staticmethod
    def of(simulation: Simulation) -> Side:
        """
        Returns the time and memory of a simulated program. The program is executed once
        more.
        """
        waiting = simulation.waiting_s
        peaks = simulation.peak_memory_bytes
        busiest = min(simulation.groups, key=lambda group: waiting[group.index])
        fullest = max(simulation.groups, key=lambda group: peaks[group.index])
        time = TimeRecorder([busiest])
        memory = MemoryRecorder(simulation, [fullest])
        simulation.run.follow(time, memory)
        report = time.report()
        (spent,) = report.groups
        (held,) = memory.report().groups
        return Side(
            report.end,
            busiest,
            spent.spent,
            spent.total,
            fullest,
            held.peak,
            held.by_kind,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "step_time_s": _seconds(self.end),
            "busiest_devices": list(self.busiest.devices),
            **_parts(self.total),
            "peak_memory_bytes": self.peak,
            "fullest_devices": list(self.fullest.devices),
            "memory_by_kind": self.by_kind,
        }


@dataclass(frozen=True)
class Difference:
    """
    The second program compared with the first. Times are in ticks (femtoseconds), for
    the devices that each step waits for. Memory is in bytes, for the devices with the
    highest peak. The differences of all `causes` add up to `total`. The three parts of
    `total` add up to `step`. The bytes by kind add up to the difference of the peaks.
    """

    first: Side
    second: Side

    @staticmethod
    def of(first: Simulation, second: Simulation) -> Difference:
        """Compares two simulations. Both programs are executed once more."""
        return Difference(Side.of(first), Side.of(second))

    @property
    def step(self) -> int:
        """
        The number of ticks (femtoseconds) by which a step of the second program is
        longer; negative if it is shorter.
        """
        return self.second.end - self.first.end

    @property
    def total(self) -> Spent:
        """
        The difference between the times spent by the two programs. Its three parts add
        up to `step`.
        """
        return self.second.total.minus(self.first.total)

    @property
    def causes(self) -> list[tuple[Cause, Spent]]:
        """
        The causes whose times differ between the two programs, each with the
        difference; the largest difference comes first.
        """
        none = Spent()
        changes = [
            (
                cause,
                self.second.spent.get(cause, none).minus(
                    self.first.spent.get(cause, none)
                ),
            )
            for cause in dict.fromkeys([*self.first.spent, *self.second.spent])
        ]
        changed = [(cause, change) for cause, change in changes if change != none]
        return sorted(changed, key=lambda item: -item[1].magnitude)

    @property
    def memory(self) -> dict[str, int]:
        """
        The number of bytes that the second program has more at its peak than the first,
        by kind of value.
        """
        return {
            kind: self.second.by_kind[kind] - self.first.by_kind[kind] for kind in KINDS
        }

    def to_json(self) -> dict[str, Any]:
        """
        Returns the difference as JSON data. Fields whose names end in `_fs` are whole
        numbers of femtoseconds.
        """
        return {
            "first": self.first.to_json(),
            "second": self.second.to_json(),
            "step_fs": self.step,
            **_parts(self.total),
            "causes": [
                {"scope": cause.scope, "op": cause.op, **_parts(change)}
                for cause, change in self.causes
            ],
            "peak_memory_bytes": self.second.peak - self.first.peak,
            "memory_by_kind": self.memory,
        }


def _seconds(ticks: int) -> float:
    return ticks / TICKS_PER_SECOND


def _parts(spent: Spent) -> dict[str, int]:
    return {
        "compute_fs": spent.compute,
        "exposed_communication_fs": spent.exposed_communication,
        "waiting_fs": spent.waiting,
    }
