"""
Reports the memory of each device: its contents at the peak, possible savings, and its
course over the step. Savings are derived from layouts and calls alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import layout_of
from distir.interpreters.simulator.engine.compiled import (
    CallStep,
    OpStep,
    is_asynchronous,
)
from distir.interpreters.simulator.engine.device_map import Bytes
from distir.interpreters.simulator.engine.following import Follower
from distir.interpreters.simulator.engine.machine import Buffer, Execution
from distir.interpreters.simulator.engine.run import DeviceGroup
from distir.interpreters.simulator.engine.scopes import ScopeCache, pattern
from distir.interpreters.simulator.reports.group_rows import GroupRows
from distir.interpreters.simulator.reports.value_kinds import (
    ACTIVATIONS,
    GRADIENTS,
    KINDS,
    PARAMETERS,
    RECEIVED,
    STATES,
    WORKSPACE,
    ValueKinds,
)
from distir.interpreters.simulator.simulation import Simulation
from distir.program import arguments_of
from distir.sharding.layout import local_shape
from distir.sharding.mesh import Mesh


@dataclass(frozen=True)
class Held:
    """
    Memory that is in use at the peak of a group of devices, `size` bytes on each
    device. `value` is the SSA value in this memory, or None for an op's workspace and
    for libraries. `scope` is the value's module in the source model. If a call that has
    returned made the value, `calls` is the path to this call; otherwise `calls` is
    empty.
    """

    value: SSAValue | None
    kind: str
    name: str
    scope: str
    size: int
    calls: tuple[CallStep, ...] = ()


_OPTIONS = {
    (STATES, "d"): "--zero 1",
    (GRADIENTS, "d"): "--zero 2",
    (PARAMETERS, "d"): "--zero 3",
    (ACTIVATIONS, "t"): "--sequence-parallel",
}
"""
The options of `distir distribute` that split a kind of values over a mesh axis, by kind
and axis.
"""

_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Saving:
    """
    A possible saving of memory. `why` explains the use of `size` bytes at the peak,
    `how` describes the change, and `saved` is the number of bytes that the change frees
    at that moment. The peak may go down by less, because it may move to another moment.
    """

    kind: str
    size: int
    saved: int
    why: str
    how: str

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "bytes": self.size,
            "saved_bytes": self.saved,
            "why": self.why,
            "how": self.how,
        }


def savings(
    held: Sequence[Held], peak: int, mesh_of: Mapping[str, Mesh]
) -> list[Saving]:
    """
    Returns possible savings of at least a hundredth of the peak, largest first. There
    are two kinds of savings: values that are equal on all devices of a mesh axis
    although the axis could split them, and values that calls of a function keep for the
    backward pass.
    """
    found = [*_replicated(held, mesh_of), *_kept(held)]
    large = [saving for saving in found if saving.saved >= _LEAST_SHARE * peak]
    return sorted(large, key=lambda saving: -saving.saved)


def _replicated(held: Sequence[Held], mesh_of: Mapping[str, Mesh]) -> list[Saving]:
    totals: dict[tuple[str, str, int, bool], tuple[int, int]] = {}
    for item in held:
        layout = None if item.value is None else layout_of(item.value)
        if item.value is None or layout is None:
            continue
        mesh, type_ = mesh_of[layout.mesh], item.value.type
        assert isinstance(type_, TensorType)
        shape = local_shape(type_.get_shape(), layout, mesh)
        for axis, devices in mesh.axes:
            if axis in layout.split_axes or devices == 1:
                continue
            if all(size % devices for size in shape):
                continue
            key = (item.kind, axis, devices, axis in layout.partial_axes)
            size, saved = totals.get(key, (0, 0))
            saved += item.size - item.size // devices
            totals[key] = (size + item.size, saved)
    savings: list[Saving] = []
    for (kind, axis, devices, is_partial), (size, saved) in totals.items():
        what = "terms of the same sum" if is_partial else "the same"
        option = _OPTIONS.get((kind, axis))
        how = f"split over them ({option})" if option else "split over them"
        why = f"{what} on the {devices} devices of axis {axis}"
        savings.append(Saving(kind, size, saved, why, how))
    return savings


def _kept(held: Sequence[Held]) -> list[Saving]:
    """
    Returns the savings from values that calls keep in addition to their results. The
    list is empty for programs without gradients.
    """
    if not any(item.kind == GRADIENTS for item in held):
        return []
    calls: dict[tuple[CallStep, ...], list[Held]] = {}
    for item in held:
        if item.kind == ACTIVATIONS and item.calls:
            calls.setdefault(item.calls, []).append(item)
    by_function: dict[str, tuple[int, int]] = {}
    for path, items in calls.items():
        if len(items) > 1:
            function = path[-1].callee.name
            count, size = by_function.get(function, (0, 0))
            size += sum(item.size for item in items)
            by_function[function] = (count + 1, size)
    return [
        Saving(
            ACTIVATIONS,
            size,
            size,
            f"kept by {count} call{'s' if count > 1 else ''} of @{function}",
            "computed again, but for what the calls take in (--checkpoint full)",
        )
        for function, (count, size) in by_function.items()
    ]


_MOMENTS = 512
"""The number of intervals of the step in `GroupMemory.curve`."""


@dataclass
class GroupMemory:
    """
    The memory of one device of a group.

    - `peak`: the most bytes in use, first reached at `peak_time` seconds by the op
      `peak_op`;
    - `held`: the contents of memory at that time; the sizes add up to the peak;
    - `curve`: the most bytes in use in each of equal intervals of the step (rows), by
      kind of value (columns, as in `KINDS`).
    """

    group: DeviceGroup
    peak: int
    curve: npt.NDArray[np.int64]
    peak_time: float = 0.0
    peak_op: str = ""
    held: list[Held] = field(default_factory=list[Held])
    savings: list[Saving] = field(default_factory=list[Saving])

    @property
    def by_kind(self) -> dict[str, int]:
        """
        The bytes of each kind of value at the peak. The numbers add up to the peak.
        """
        totals: dict[str, int] = dict.fromkeys(KINDS, 0)
        for held in self.held:
            totals[held.kind] += held.size
        return totals

    @property
    def by_scope(self) -> list[tuple[str, int]]:
        """
        The bytes of each module at the peak, largest first. The same module of all
        layers is one entry.
        """
        return _largest((pattern(held.scope), held.size) for held in self.held)

    def to_json(self, listed: int = 20) -> dict[str, Any]:
        """
        Returns the report as JSON data, with the `listed` largest modules and values.
        """
        largest = sorted(self.held, key=lambda held: -held.size)
        return {
            "meshes": list(self.group.meshes),
            "devices": list(self.group.devices),
            "peak_bytes": self.peak,
            "peak_time_s": self.peak_time,
            "peak_op": self.peak_op,
            "by_kind": self.by_kind,
            "by_scope": [
                {"scope": scope, "bytes": size}
                for scope, size in self.by_scope[:listed]
            ],
            "largest": [
                {"name": h.name, "kind": h.kind, "scope": h.scope, "bytes": h.size}
                for h in largest[:listed]
            ],
            "savings": [saving.to_json() for saving in self.savings],
        }


@dataclass(frozen=True)
class MemoryReport:
    """The memory of each group of devices that do the same work."""

    groups: list[GroupMemory]

    @staticmethod
    def of(simulation: Simulation, most: int | None = None) -> MemoryReport:
        """
        Executes the program once more, and returns the report on the first `most`
        groups of devices, or on all if `most` is None.
        """
        recorder = MemoryRecorder(simulation, simulation.groups[:most])
        simulation.run.follow(recorder)
        return recorder.report()

    @property
    def largest(self) -> GroupMemory:
        """The memory of the group of devices with the highest peak."""
        return max(self.groups, key=lambda group: group.peak)

    def to_json(self) -> list[dict[str, Any]]:
        """Returns the report as JSON data, with one entry per group of devices."""
        return [group.to_json() for group in self.groups]


def _largest(pairs: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    totals: dict[str, int] = {}
    for name, size in pairs:
        totals[name] = totals.get(name, 0) + size
    return sorted(totals.items(), key=lambda item: -item[1])


def _on(size: Bytes, place: int) -> int:
    """
    Returns the bytes on the device at index `place`. `size` is one number for all
    devices, or an array.
    """
    return size if isinstance(size, int) else int(size[place])


@dataclass
class _Live:
    value: SSAValue
    kind: int
    path: tuple[CallStep, ...]
    sizes: list[tuple[int, int]]
    """Pairs of a group's row and the bytes on its device."""


class MemoryRecorder(Follower):
    """Records the memory of one device of each group in `groups`."""

    def __init__(self, simulation: Simulation, groups: Sequence[DeviceGroup]):
        module, entry = simulation.run.module, simulation.run.entry
        self._kinds = ValueKinds(module)
        self._simulation = simulation
        self._rows = GroupRows(groups)
        count = len(groups)
        self._groups = [
            GroupMemory(
                group,
                simulation.peak_memory_bytes[group.index],
                np.zeros((_MOMENTS, len(KINDS)), dtype=np.int64),
            )
            for group in groups
        ]
        self._live: dict[Buffer, _Live] = {}
        self._bytes = [np.zeros(len(KINDS), dtype=np.int64) for _ in groups]
        self._total = [0] * count
        self._reserved = [self._reserve(row) for row in range(count)]
        self._most = np.zeros((count, _MOMENTS), dtype=np.int64)
        self._until = [0.0] * count
        self._missing = set(range(count))
        self._touched: set[int] = set()
        step_time = simulation.step_time_s
        self._per_second = _MOMENTS / step_time if step_time else 0.0
        self._scope = ScopeCache()
        self._argument_names: dict[SSAValue, str] = {
            argument.value: argument.name for argument in arguments_of(entry)
        }

    def _reserve(self, row: int) -> list[Held]:
        """
        Returns the memory that libraries and buckets of gradients take throughout on
        the device of group `row`, and counts this memory as in use.
        """
        reserved = self._simulation.run.reserved
        position = self._groups[row].group.position
        found: list[Held] = []
        for kind, name, each in (
            (WORKSPACE, "libraries", reserved.libraries),
            (RECEIVED, "communicators", reserved.communicators),
            (RECEIVED, "buckets of gradients", reserved.buckets),
        ):
            size = int(each[position])
            self._bytes[row][KINDS.index(kind)] += size
            self._total[row] += size
            if size:
                found.append(Held(None, kind, name, "", size))
        return found

    def ran(self, execution: Execution) -> None:
        """
        Records that the op's devices hold their current memory until the op starts.
        """
        if not is_asynchronous(execution.step):
            for row, offset in self._rows.among(execution.positions):
                self._alive(row, float(execution.start[offset]), None)

    def allocated(
        self, buffer: Buffer, value: SSAValue, path: Sequence[CallStep]
    ) -> None:
        sizes = [
            (row, _on(buffer.size, offset))
            for row, offset in self._rows.among(buffer.positions)
        ]
        if not sizes:
            return
        kind = KINDS.index(self._kinds[value])
        self._live[buffer] = _Live(value, kind, tuple(path), sizes)
        for row, size in sizes:
            self._bytes[row][kind] += size
            self._total[row] += size
            self._touched.add(row)

    def released(self, buffer: Buffer) -> None:
        live = self._live.pop(buffer, None)
        if live is not None:
            for row, size in live.sizes:
                self._bytes[row][live.kind] -= size
                self._total[row] -= size

    def held(self, step: OpStep | None, path: Sequence[CallStep]) -> None:
        workspace: dict[int, int] = {}
        if step is not None and not (
            isinstance(step.workspace, int) and step.workspace == 0
        ):
            for row, offset in self._rows.among(step.positions):
                workspace[row] = _on(step.workspace, offset)
        machine = self.machine
        for row in self._touched | workspace.keys():
            position = self._groups[row].group.position
            self._alive(row, float(machine.clock[position]), workspace.get(row))
            if row in self._missing:
                live = self._total[row] + workspace.get(row, 0)
                if live == self._groups[row].peak:
                    self._missing.remove(row)
                    self._take(row, step, path, workspace.get(row, 0))
        self._touched.clear()

    def _alive(self, row: int, until: float, workspace: int | None) -> None:
        """
        Records that the memory in use was constant from the last recorded time until
        the time `until`, in seconds. `workspace` bytes are added to the memory in use.
        """
        begin = min(int(self._until[row] * self._per_second), _MOMENTS - 1)
        end = min(int(until * self._per_second), _MOMENTS - 1)
        self._until[row] = max(until, self._until[row])
        total = self._total[row] + (workspace or 0)
        most = self._most[row]
        for moment in range(begin, end + 1):
            if total > most[moment]:
                most[moment] = total
                curve = self._groups[row].curve
                curve[moment] = self._bytes[row]
                curve[moment, KINDS.index(WORKSPACE)] += workspace or 0

    def _take(
        self,
        row: int,
        step: OpStep | None,
        path: Sequence[CallStep],
        workspace: int,
    ) -> None:
        """
        Records the contents of memory at the peak, while `step` runs, on the device
        that represents the group with index `row`.
        """
        memory = self._groups[row]
        memory.peak_time = float(self.machine.clock[memory.group.position])
        open_calls = set(path)
        memory.held += self._reserved[row]
        for live in self._live.values():
            size = dict(live.sizes).get(row, 0)
            if size:
                memory.held.append(self._held(live, size, open_calls))
        if step is not None:
            scope = self._scope(step.op, path)
            memory.peak_op = f"{step.op.name} {scope}".strip()
            if workspace:
                name = f"workspace of {step.op.name}"
                memory.held.append(Held(None, WORKSPACE, name, scope, workspace))

    def _held(self, live: _Live, size: int, open_calls: set[CallStep]) -> Held:
        kind = KINDS[live.kind]
        name = self._argument_names.get(live.value)
        if name is not None:
            # An argument's name is its module's scope and one more part. A state's name
            # is its parameter's name and one more part.
            scope = name.rpartition(".")[0]
            if kind == STATES:
                scope = scope.rpartition(".")[0]
            return Held(live.value, kind, name, scope, size)
        op = live.value.owner
        assert isinstance(op, Operation)
        scope = self._scope(op, live.path)
        name = f"{op.name} %{live.value.name_hint or ''}".rstrip(" %")
        is_kept = bool(live.path) and live.path[-1] not in open_calls
        call = live.path if is_kept else ()
        return Held(live.value, kind, name, scope, size, call)

    def report(self) -> MemoryReport:
        """Returns the report. Call this method after the program has been executed."""
        step_time = self._simulation.step_time_s
        mesh_of = self._simulation.run.device_map.meshes
        for row, memory in enumerate(self._groups):
            self._alive(row, step_time, None)
            assert row not in self._missing, "the replay must reach the same peak"
            memory.savings = savings(memory.held, memory.peak, mesh_of)
        return MemoryReport(self._groups)
