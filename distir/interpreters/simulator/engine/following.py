"""
Follows a program that is executed op by op, with its times and all changes of memory.
"""

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
    Base of classes that follow an execution. The methods of this class do nothing; a
    subclass overrides the methods that it needs.

    A machine calls the methods in program order, and the methods may read the machine's
    state. For each op, the machine calls `ran` while clocks and memory are as before
    the op, then `allocated` for each result. It calls `held` when results and workspace
    exist and the clocks are at the op's end, and then `released` for each value that is
    freed.
    """

    machine: Machine

    def begin(self, machine: Machine) -> None:
        """Called before any memory is allocated."""
        self.machine = machine

    def ran(self, execution: Execution) -> None:
        """
        Called when an op runs, with its devices and times. A send makes one call for
        each batch of pairs of devices.
        """

    def awaited(self, buffer: Buffer) -> None:
        """Called when devices have waited for a value that was in flight."""

    def allocated(
        self, buffer: Buffer, value: SSAValue, path: Sequence[CallStep]
    ) -> None:
        """Called when new memory is allocated for `value`."""

    def released(self, buffer: Buffer) -> None:
        """Called when memory becomes free."""

    def held(self, step: OpStep | None, path: Sequence[CallStep]) -> None:
        """
        Called at each point where the memory in use may be at its peak: while an op
        runs, and before the first one, when `step` is None.
        """


class FollowedMachine(Machine):
    """
    A machine that executes every op of a program on `devices` devices, and reports each
    op, and each change of memory, to its `followers`. `entry` is the program's entry
    function, whose arguments are in memory throughout.
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
        """
        Allocates memory for an argument of the program or a result of the current op,
        and reports this to the followers.
        """
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
        """
        Removes one holder of the memory. If no holder is left, the memory is freed, and
        this is reported to the followers.
        """
        super().release(buffer)
        if not buffer.holders:
            for follower in self._followers:
                follower.released(buffer)

    def note_peak(self) -> None:
        """Records the memory in use, and reports it to the followers."""
        super().note_peak()
        for follower in self._followers:
            follower.held(self._step, self._path)

    def _hold_constant(self, step: OpStep, result: Allocation) -> None:
        """Allocates the memory of a constant for the whole step."""
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
