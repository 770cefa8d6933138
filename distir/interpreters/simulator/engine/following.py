"""Following a program while it is executed op by op: its times, and all of its memory."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from distir.interpreters.simulator.engine.compiled import (
    Allocation,
    CompiledOp,
)
from distir.interpreters.simulator.engine.machine import Buffer, Execution, Machine


class Follower:
    """
    Base of what follows an execution; its methods do nothing, and are overridden by what is
    of interest. It is told of what happens, in program order, by a machine whose state it may
    read. For
    each op `ran` comes first, when its devices' clocks and memory are still as before;
    then what it allocates; then `held`, when its results and workspace are there and the
    clocks at its end; then what it releases.
    """

    machine: Machine

    def begin(self, machine: Machine) -> None:
        """Before anything is allocated."""
        self.machine = machine

    def ran(self, execution: Execution) -> None:
        """An op runs; sends do so for each pair of devices."""

    def awaited(self, buffer: Buffer) -> None:
        """Devices have waited for a value that was on its way, if it was not there."""

    def allocated(
        self, buffer: Buffer, value: SSAValue, path: Sequence[CompiledOp]
    ) -> None:
        """Memory for a value that nothing else holds."""

    def released(self, buffer: Buffer) -> None:
        """Memory is free again."""

    def held(self, step: CompiledOp | None, path: Sequence[CompiledOp]) -> None:
        """Memory in use is as large as it ever was, at this op (None: before the first)."""


class FollowedMachine(Machine):
    """
    A machine on so many devices that executes every op of a program, and tells its
    `followers` of each and of all memory. `entry` is the program's entry function, whose
    arguments are in memory throughout.
    """

    def __init__(self, devices: int, followers: Sequence[Follower], entry: FuncOp):
        super().__init__(devices, self._ran)
        self._followers = followers
        self._entry = entry
        self._step: CompiledOp | None = None
        for follower in followers:
            follower.begin(self)

    def _ran(self, execution: Execution) -> None:
        for follower in self._followers:
            follower.ran(execution)

    def allocate(self, allocation: Allocation) -> Buffer:
        """New memory; its value is a result of the op at hand, or an argument."""
        buffer = super().allocate(allocation)
        value: SSAValue
        if self._step is None:
            value = self._entry.body.block.args[allocation.slot]
        else:
            slots = [result.slot for result in self._step.results]
            value = self._step.op.results[slots.index(allocation.slot)]
        for follower in self._followers:
            follower.allocated(buffer, value, self._path)
        return buffer

    def release(self, buffer: Buffer) -> None:
        """One value less holds the memory."""
        super().release(buffer)
        if not buffer.holders:
            for follower in self._followers:
                follower.released(buffer)

    def note_peak(self) -> None:
        """What is live now may be the peak."""
        super().note_peak()
        for follower in self._followers:
            follower.held(self._step, self._path)

    def _hold_constant(self, step: CompiledOp, result: Allocation) -> None:
        """Allocates the constant for its op."""
        self._step = step
        super()._hold_constant(step, result)
        self._step = None

    def wait_for(self, buffer: Buffer) -> None:
        super().wait_for(buffer)
        for follower in self._followers:
            follower.awaited(buffer)

    def _store(self, step: CompiledOp, frame: list[Buffer]) -> None:
        self._step = step
        super()._store(step, frame)
