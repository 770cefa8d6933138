"""Follows a program while it is executed op by op: its times, and all of its memory."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from distir.interpreters.simulator.engine.compiled import (
    Allocation,
    CallStep,
    OpStep,
)
from distir.interpreters.simulator.engine.machine import Buffer, Execution, Machine


class Follower:
    """
    Base of what follows an execution; its methods do nothing, and subclasses override those
    that matter to them.

    A machine, whose state may be read, calls them in program order. For each op `ran` comes
    first, while its devices' clocks and memory are still as before; then its allocations;
    then `held`, when its results and workspace exist and the clocks are at its end; then
    its releases.
    """

    machine: Machine

    def begin(self, machine: Machine) -> None:
        """Called before anything is allocated."""
        self.machine = machine

    def ran(self, execution: Execution) -> None:
        """Called when an op runs; for a send, once for each pair of devices."""

    def awaited(self, buffer: Buffer) -> None:
        """Called when devices have waited for a value, if it had not arrived yet."""

    def allocated(
        self, buffer: Buffer, value: SSAValue, path: Sequence[CallStep]
    ) -> None:
        """Called for new memory of a value, which nothing else holds."""

    def released(self, buffer: Buffer) -> None:
        """Called when memory is free again."""

    def held(self, step: OpStep | None, path: Sequence[CallStep]) -> None:
        """
        Called when the memory in use is as large as it ever was, at this op (None: before
        the first).
        """


class FollowedMachine(Machine):
    """
    A machine on so many devices that executes every op of a program, and tells its
    `followers` of each op and of all memory. `entry` is the program's entry function, whose
    arguments are in memory throughout.
    """

    def __init__(self, devices: int, followers: Sequence[Follower], entry: FuncOp):
        super().__init__(devices, self._ran)
        self._followers = followers
        self._entry = entry
        self._step: OpStep | None = None
        for follower in followers:
            follower.begin(self)

    def _ran(self, execution: Execution) -> None:
        for follower in self._followers:
            follower.ran(execution)

    def allocate(self, allocation: Allocation) -> Buffer:
        """Allocates memory, for an argument or for a result of the current op."""
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
        """Removes one holder of the memory."""
        super().release(buffer)
        if not buffer.holders:
            for follower in self._followers:
                follower.released(buffer)

    def note_peak(self) -> None:
        """Records the memory in use now, which may be the peak."""
        super().note_peak()
        for follower in self._followers:
            follower.held(self._step, self._path)

    def _hold_constant(self, step: OpStep, result: Allocation) -> None:
        """Allocates a constant for its op."""
        self._step = step
        super()._hold_constant(step, result)
        self._step = None

    def wait_for(self, buffer: Buffer) -> None:
        super().wait_for(buffer)
        for follower in self._followers:
            follower.awaited(buffer)

    def _allocate_results(self, step: OpStep, frame: list[Buffer]) -> None:
        self._step = step
        super()._allocate_results(step, frame)
