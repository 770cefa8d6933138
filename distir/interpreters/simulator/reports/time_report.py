"""Reports where the time of each device goes: a timeline, and seconds by scope and op."""

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
"""Times are whole femtoseconds (ticks), so that parts add up exactly to the whole."""

END = "end of the step"
"""The name of what a device waits for after its last op."""


def ticks(seconds: float) -> int:
    """Converts seconds to whole femtoseconds, whose sums do not round."""
    return round(seconds * TICKS_PER_SECOND)


class Cause(NamedTuple):
    """
    A cause of the time that a device spends: an op, and the module that it belongs to
    (in all layers).
    """

    scope: str
    op: str


@dataclass
class Spent:
    """
    The ticks in which a device computes; communicates, or waits for messages; and
    waits for others.
    """

    compute: int = 0
    exposed_communication: int = 0
    waiting: int = 0

    @property
    def total(self) -> int:
        """The sum of all three."""
        return self.compute + self.exposed_communication + self.waiting

    @property
    def magnitude(self) -> int:
        """The sum of the absolute values of the parts, for differences."""
        return abs(self.compute) + abs(self.exposed_communication) + abs(self.waiting)

    def add(self, other: Spent) -> None:
        """Adds the ticks of another."""
        self.compute += other.compute
        self.exposed_communication += other.exposed_communication
        self.waiting += other.waiting

    def minus(self, other: Spent) -> Spent:
        """Returns the difference from another."""
        return Spent(
            self.compute - other.compute,
            self.exposed_communication - other.exposed_communication,
            self.waiting - other.waiting,
        )


@dataclass
class Block:
    """
    Consecutive ops on the timeline, from `begin` to `end` in ticks, which compute and
    communicate for so many of them; `label` and `function` are those of the first. There is
    more than one op if they are too short to be shown one by one.
    """

    begin: int
    end: int
    compute: int
    communication: int
    label: str
    function: str
    ops: int = 1

    def add(self, other: Block) -> None:
        """Adds the block that follows to this one."""
        self.end = max(self.end, other.end)
        self.compute += other.compute
        self.communication += other.communication
        self.ops += other.ops


@dataclass
class GroupTime:
    """
    The time of one device of a group: `spent` by cause adds up to the step; waiting counts
    for the collective or send that is waited for. `blocks`, `sends` (those beside the
    device's other work) and `calls` of the entry function are its timeline.
    """

    group: DeviceGroup
    spent: dict[Cause, Spent] = field(default_factory=dict[Cause, Spent])
    blocks: list[Block] = field(default_factory=list[Block])
    sends: list[Block] = field(default_factory=list[Block])
    calls: list[Block] = field(default_factory=list[Block])

    @property
    def total(self) -> Spent:
        """The sum over the whole step."""
        total = Spent()
        for spent in self.spent.values():
            total.add(spent)
        return total


@dataclass(frozen=True)
class TimeReport:
    """
    The time of each group of devices that do the same; `end` is the end of the step in
    ticks.
    """

    groups: list[GroupTime]
    end: int

    @staticmethod
    def of(simulation: Simulation, most: int | None = None) -> TimeReport:
        """
        Executes the program once more, for the first `most` groups of devices, and reports
        on its time.
        """
        recorder = TimeRecorder(simulation.groups[:most])
        simulation.run.follow(recorder)
        return recorder.report()

    @property
    def busiest(self) -> GroupTime:
        """
        The devices that wait for others the least, which are those that the step waits for.
        """
        return min(self.groups, key=lambda group: group.total.waiting)


class TimeRecorder(Follower):
    """
    Follows one device of each of some groups. With a `resolution` (seconds), ops are
    combined into blocks of at most that length, and the timeline is kept; a negative one
    keeps none.
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
                # What updates an argument takes its memory: none is allocated for it, and
                # nothing waits for it before the step ends.
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
        """Counts the ticks from the last op until `begin` as waiting for a cause."""
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
        """Appends a block, or adds it to the last one if both are short."""
        assert self._resolution is not None
        if not blocks or block.end - blocks[-1].begin > self._resolution:
            blocks.append(block)
        else:
            blocks[-1].add(block)

    def report(self) -> TimeReport:
        """Returns the report, once the program has been executed."""
        end = ticks(self.machine.end)
        for row, group in enumerate(self._groups):
            if end > self._until[row]:
                self._waited(row, Cause("", END), end)
            calls, group.calls = group.calls, []
            for call in calls:
                self._put(group.calls, call)
        return TimeReport(self._groups, end)
