"""Reports the time of each device: a timeline, and seconds by module and op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from xdsl.ir import Operation, SSAValue

from distir.dialects.dist_attributes import ASYNCHRONOUS
from distir.interpreters.simulator.engine.compiled import (
    CallStep,
    CommunicationStep,
    OpStep,
    is_asynchronous,
)
from distir.interpreters.simulator.engine.following import Follower
from distir.interpreters.simulator.engine.machine import Buffer, Execution
from distir.interpreters.simulator.engine.run import DeviceGroup
from distir.interpreters.simulator.engine.scopes import ScopeCache, pattern
from distir.interpreters.simulator.reports.group_rows import GroupRows
from distir.interpreters.simulator.simulation import Simulation

TICKS_PER_SECOND = 10**15
"""
The number of ticks per second. Times are whole femtoseconds (ticks), so parts add up
exactly to the whole.
"""

END = "end of the step"
"""The name of the cause of waiting after a device's last op."""


def ticks(seconds: float) -> int:
    """Returns seconds as whole femtoseconds, because sums of integers are exact."""
    return round(seconds * TICKS_PER_SECOND)


class Cause(NamedTuple):
    """
    A cause of the time that a device spends: the name of an op, and the scope of the
    op's module, with `*` for the numbers of layers.
    """

    scope: str
    op: str


@dataclass
class Spent:
    """
    The time that a device spends, in ticks. `compute` is the time in which the device
    computes. `exposed_communication` is the time in which the device communicates, or
    waits for a message in transit. `waiting` is the time in which the device waits for
    other devices.
    """

    compute: int = 0
    exposed_communication: int = 0
    waiting: int = 0

    @property
    def total(self) -> int:
        """The sum of all three times."""
        return self.compute + self.exposed_communication + self.waiting

    @property
    def magnitude(self) -> int:
        """
        The sum of the absolute values of all three times, by which differences are
        sorted.
        """
        return abs(self.compute) + abs(self.exposed_communication) + abs(self.waiting)

    def add(self, other: Spent) -> None:
        """Adds the times of `other` to this object's times."""
        self.compute += other.compute
        self.exposed_communication += other.exposed_communication
        self.waiting += other.waiting

    def minus(self, other: Spent) -> Spent:
        """Returns these times minus the times of `other`."""
        return Spent(
            self.compute - other.compute,
            self.exposed_communication - other.exposed_communication,
            self.waiting - other.waiting,
        )


@dataclass
class Block:
    """
    Consecutive ops on the timeline, from `begin` to `end` in ticks (femtoseconds).
    `compute` and `communication` are the ticks in which the ops compute and
    communicate, and `ops` is their number. Ops that are too short for a block of their
    own share one, with the `label` and `function` of the first op.
    """

    begin: int
    end: int
    compute: int
    communication: int
    label: str
    function: str
    ops: int = 1

    def add(self, other: Block) -> None:
        """Extends this block by `other`, the block that follows it."""
        self.end = max(self.end, other.end)
        self.compute += other.compute
        self.communication += other.communication
        self.ops += other.ops


@dataclass
class GroupTime:
    """
    The time of one device of a group. `spent` gives the time by cause; the times add up
    to the step. The cause of waiting is the collective or send that the device waits
    for. The timeline consists of three lists: `blocks` of ops, `sends` with
    asynchronous communication, and `calls` by the entry function.
    """

    group: DeviceGroup
    spent: dict[Cause, Spent] = field(default_factory=dict[Cause, Spent])
    blocks: list[Block] = field(default_factory=list[Block])
    sends: list[Block] = field(default_factory=list[Block])
    calls: list[Block] = field(default_factory=list[Block])

    @property
    def total(self) -> Spent:
        """The time spent over the whole step."""
        total = Spent()
        for spent in self.spent.values():
            total.add(spent)
        return total


@dataclass(frozen=True)
class TimeReport:
    """
    The time of each group of devices that do the same work. `end` is the end of the
    step in ticks.
    """

    groups: list[GroupTime]
    end: int

    @staticmethod
    def of(simulation: Simulation, most: int | None = None) -> TimeReport:
        """
        Executes the program once more, and returns the report on the first `most`
        groups of devices, or on all if `most` is None.
        """
        recorder = TimeRecorder(simulation.groups[:most])
        simulation.run.follow(recorder)
        return recorder.report()

    @property
    def busiest(self) -> GroupTime:
        """The time of the group whose devices wait the least for other devices."""
        return min(self.groups, key=lambda group: group.total.waiting)


class TimeRecorder(Follower):
    """
    Records the time of one device of each group in `groups`. `resolution`, in seconds,
    is the longest block into which short ops are combined on the timeline; if
    `resolution` is negative, no timeline is kept.
    """

    def __init__(self, groups: Sequence[DeviceGroup], resolution: float = -1.0):
        self._rows = GroupRows(groups)
        self._groups = [GroupTime(group) for group in groups]
        self._until = [0] * len(groups)
        self._transit = [0.0] * len(groups)
        self._call: list[CallStep | None] = [None] * len(groups)
        self._resolution = ticks(resolution) if resolution >= 0 else None
        self._scope = ScopeCache()
        self._causes: dict[tuple[str, str], Cause] = {}
        self._sent: dict[Buffer, Cause] = {}

    def ran(self, execution: Execution) -> None:
        step, path, positions, start, seconds = execution
        rows = self._rows.among(positions)
        if not rows:
            return
        scope = self._scope(step.op, path)
        for row, offset in rows:
            began = float(start[offset])
            lasts = seconds if isinstance(seconds, int | float) else seconds[offset]
            begin, end = ticks(began), ticks(began + float(lasts))
            if not is_asynchronous(step):
                self._spend(row, step, scope, begin, end)
            if self._resolution is not None and end > begin:
                self._show(row, step, path, scope, begin, end)

    def allocated(
        self, buffer: Buffer, value: SSAValue, path: Sequence[CallStep]
    ) -> None:
        if (
            isinstance(value.owner, Operation)
            and ASYNCHRONOUS in value.owner.attributes
        ):
            scope = self._scope(value.owner, path)
            self._sent[buffer] = self._cause(scope, value.owner.name)

    def awaited(self, buffer: Buffer) -> None:
        for row, _ in self._rows.among(buffer.positions):
            until = ticks(float(self.machine.clock[self._groups[row].group.position]))
            if until > self._until[row]:
                # A value that updates an argument takes over its memory. So no memory
                # is allocated for it, and nothing waits for it before the step ends.
                cause = self._sent.get(buffer) or self._cause("", END)
                self._waited(row, cause, until)
                self._until[row] = until

    def _cause(self, scope: str, op: str) -> Cause:
        cause = self._causes.get((scope, op))
        if cause is None:
            cause = self._causes[scope, op] = Cause(pattern(scope), op)
        return cause

    def _spend(self, row: int, step: OpStep, scope: str, begin: int, end: int) -> None:
        spent = self._waited(row, self._cause(scope, step.op.name), begin)
        if isinstance(step, CommunicationStep):
            spent.exposed_communication += end - begin
        else:
            spent.compute += end - begin
        self._until[row] = end

    def _waited(self, row: int, cause: Cause, begin: int) -> Spent:
        """
        Counts the ticks from the end of the last op until `begin` as waiting for
        `cause`. Returns the record of the time spent on `cause`.
        """
        group = self._groups[row]
        spent = group.spent.get(cause)
        if spent is None:
            spent = group.spent[cause] = Spent()
        gap = begin - self._until[row]
        if gap > 0:
            transit = float(self.machine.transit[group.group.position])
            sending = min(gap, ticks(transit - self._transit[row]))
            self._transit[row] = transit
            spent.exposed_communication += sending
            spent.waiting += gap - sending
        return spent

    def _show(
        self,
        row: int,
        step: OpStep,
        path: Sequence[CallStep],
        scope: str,
        begin: int,
        end: int,
    ) -> None:
        group = self._groups[row]
        communication = end - begin if isinstance(step, CommunicationStep) else 0
        function = path[0].callee.name if path else ""
        block = Block(
            begin,
            end,
            end - begin - communication,
            communication,
            f"{step.op.name} {scope}".strip(),
            function,
        )
        if is_asynchronous(step):
            self._put(group.sends, block)
            return
        self._put(group.blocks, block)
        if path:
            call = replace(block, label=function)
            if self._call[row] is path[0]:
                group.calls[-1].add(call)
            else:
                self._call[row] = path[0]
                group.calls.append(call)

    def _put(self, blocks: list[Block], block: Block) -> None:
        """
        Appends a block to `blocks`, or merges it into the last block if the two blocks
        together are not longer than the resolution.
        """
        assert self._resolution is not None
        if not blocks or block.end - blocks[-1].begin > self._resolution:
            blocks.append(block)
        else:
            blocks[-1].add(block)

    def report(self) -> TimeReport:
        """Returns the report. Call this method after the program has been executed."""
        end = ticks(self.machine.end)
        for row, group in enumerate(self._groups):
            if end > self._until[row]:
                self._waited(row, Cause("", END), end)
            calls, group.calls = group.calls, []
            for call in calls:
                self._put(group.calls, call)
        return TimeReport(self._groups, end)
