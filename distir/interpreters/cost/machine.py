"""
Executing plans on clocks: DistIR's synchronous semantics, and sends beside it.

Ops run in program order. A device does one thing at a time; a computation occupies each
of its devices on its own, a collective or send makes its devices wait for each other and
occupies all of them. Asynchronous sends leave the devices free: from one device to another
they follow each other, from when the sender comes to them; the receiver waits where it
uses the value. Memory: results are allocated before operands are freed; a value is
freed after its last use, across calls too. What updates an argument of the program may
take over its memory (see `Planner`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from distir.interpreters.cost.placement import Bytes, Positions
from distir.interpreters.cost.plan import Allocation, Plan, Seconds, Step

if TYPE_CHECKING:
    from distir.interpreters.cost.summaries import Summaries


class Execution(NamedTuple):
    """
    An op as it runs, after the calls in `path`: where, from when, for how long, in
    seconds per position (or the same for all).
    """

    step: Step
    path: Sequence[Step]
    positions: Positions | npt.NDArray[np.intp]
    start: npt.NDArray[np.float64]
    seconds: Seconds


Observer = Callable[[Execution], None]
"""Is told of every op as it runs."""


class Buffer:
    """
    Memory on some devices, and how many values hold it. `arrival` says when the value is
    there, per device of the program, `departure` when its transfer begins; None once
    nobody has to wait for it.
    """

    __slots__ = ("arrival", "departure", "holders", "positions", "size")

    def __init__(self, positions: Positions, size: Bytes):
        self.positions = positions
        self.size = size
        self.holders = 1
        self.arrival: npt.NDArray[np.float64] | None = None
        self.departure: npt.NDArray[np.float64] | None = None


class Machine:
    """
    The state of all devices while a program runs. Arrays have one entry per device:
    `clock`, `compute`, `communication` and `idle` in seconds, `live`, `peak` and `sent` in
    bytes, `flops` in floating-point operations, `seconds_at_peak` in seconds that these
    would take at the devices' peak. `transit` is the part of `idle` in which devices wait
    for a value while it is being sent. `channels` has the clocks of the sends
    beside them, one for each pair of devices, by the pairs that send together; what they do
    does not count as `communication`.
    """

    def __init__(
        self,
        devices: int,
        observer: Observer | None = None,
        summaries: Summaries | None = None,
    ):
        self.clock = np.zeros(devices)
        self.channels: dict[bytes, npt.NDArray[np.float64]] = {}
        self.compute = np.zeros(devices)
        self.communication = np.zeros(devices)
        self.idle = np.zeros(devices)
        self.transit = np.zeros(devices)
        self.sent = np.zeros(devices)
        self.flops = np.zeros(devices)
        self.seconds_at_peak = np.zeros(devices)
        self.live = np.zeros(devices, dtype=np.int64)
        self.peak = np.zeros(devices, dtype=np.int64)
        self.ops = 0
        self._observer = observer
        self._summaries = summaries
        self.constants: dict[Step, Buffer] = {}
        self._path: list[Step] = []

    @property
    def end(self) -> float:
        """When the last device, and the last send, is done."""
        sends = [float(clock.max()) for clock in self.channels.values()]
        return max(float(self.clock.max()), *sends, 0.0)

    def allocate(self, allocation: Allocation) -> Buffer:
        """New memory for a value."""
        buffer = Buffer(allocation.positions, allocation.size)
        self.live[buffer.positions] += buffer.size
        return buffer

    def release(self, buffer: Buffer) -> None:
        """One value less holds the memory; without holders it is freed."""
        buffer.holders -= 1
        if not buffer.holders:
            self.live[buffer.positions] -= buffer.size

    def note_peak(self) -> None:
        """Updates the peak of each device from what is live now."""
        np.maximum(self.peak, self.live, out=self.peak)

    def run(self, plan: Plan, arguments: Sequence[Buffer]) -> list[Buffer]:
        """
        Runs a function. Each argument is held once for it; each of its results is held
        once for the caller.
        """
        frame: list[Buffer] = [
            *arguments,
            *([_NOTHING] * (plan.slots - plan.arguments)),
        ]
        for slot in plan.unused:
            self.release(frame[slot])
        for step in plan.steps:
            for slot in step.operands:
                if frame[slot].arrival is not None:
                    self._await(frame[slot])
            if step.callee is not None:
                self._call(step, step.callee, frame)
            else:
                self.ops += 1
                if step.is_asynchronous:
                    departure, arrival = self._send_aside(step)
                    self._store(step, frame)
                    received = frame[step.results[0].slot]
                    received.departure, received.arrival = departure, arrival
                else:
                    self._occupy(step)
                    self._store(step, frame)
                for slot in step.dying:
                    self.release(frame[slot])
        results = [frame[slot] for slot in plan.returns]
        for buffer in results:
            buffer.holders += 1
        for slot in dict.fromkeys(plan.returns):
            self.release(frame[slot])
        return results

    def _call(self, step: Step, callee: Plan, frame: list[Buffer]) -> None:
        arguments = [frame[slot] for slot in step.operands]
        for buffer in arguments:
            buffer.holders += 1
        # What the caller needs no more is the callee's to free.
        results = {allocation.slot for allocation in step.results}
        for slot in step.dying:
            if slot not in results:
                self.release(frame[slot])
        if self._summaries is not None and callee.mesh is not None:
            returned = self._summaries.call(self, callee, arguments)
        else:
            self._path.append(step)
            returned = self.run(callee, arguments)
            self._path.pop()
        for allocation, buffer in zip(step.results, returned, strict=True):
            frame[allocation.slot] = buffer
        for slot in step.dying:
            if slot in results:
                self.release(frame[slot])

    def _await(self, buffer: Buffer) -> None:
        """The devices of a value that is on its way wait for it."""
        assert buffer.arrival is not None and buffer.departure is not None
        waits = np.maximum(buffer.arrival - self.clock, 0.0)
        self.transit += np.minimum(waits, buffer.arrival - buffer.departure)
        self.idle += waits
        self.clock += waits
        buffer.arrival = buffer.departure = None

    def _send_aside(
        self, step: Step
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Sends while the devices go on; gives when the value leaves and arrives."""
        departure, arrival = np.zeros_like(self.clock), np.zeros_like(self.clock)
        for transfer in step.transfers:
            senders, receivers = transfer.positions.T
            pairs = transfer.positions.tobytes()
            start = np.maximum(self.clock[senders], self.channels.get(pairs, 0.0))
            end = self.channels[pairs] = start + transfer.seconds
            departure[receivers], arrival[receivers] = start, end
            self.sent[transfer.positions] += transfer.sent
            if self._observer is not None:
                shape = transfer.positions.shape
                starts = np.broadcast_to(start[:, None], shape).ravel()
                seconds = np.broadcast_to((end - start)[:, None], shape).ravel()
                positions = transfer.positions.ravel()
                self._observer(Execution(step, self._path, positions, starts, seconds))
        return departure, arrival

    def _occupy(self, step: Step) -> None:
        for transfer in step.transfers:
            rows = self.clock[transfer.positions]
            start = rows.max(axis=1)
            self.idle[transfer.positions] += start[:, None] - rows
            if self._observer is not None:
                starts = np.broadcast_to(start[:, None], rows.shape)
                each = np.broadcast_to(transfer.seconds, start.shape)
                seconds = np.broadcast_to(each[:, None], rows.shape)
                self._observer(
                    Execution(
                        step,
                        self._path,
                        transfer.positions.ravel(),
                        starts.ravel(),
                        seconds.ravel(),
                    )
                )
            self.clock[transfer.positions] = (start + transfer.seconds)[:, None]
            self.communication[transfer.positions] += np.reshape(
                transfer.seconds, (-1, 1)
            )
            self.sent[transfer.positions] += transfer.sent
        if not step.transfers:
            if self._observer is not None:
                start = self.clock[step.positions].copy()
                self._observer(
                    Execution(step, self._path, step.positions, start, step.seconds)
                )
            self.clock[step.positions] += step.seconds
            self.compute[step.positions] += step.seconds
            if step.flops:
                self.flops[step.positions] += step.flops
                self.seconds_at_peak[step.positions] += step.seconds_at_peak

    def _store(self, step: Step, frame: list[Buffer]) -> None:
        if step.view_of is not None:
            buffer = frame[step.view_of]
            buffer.holders += 1
            frame[step.results[0].slot] = buffer
            return
        if step.is_constant:
            buffer = self.constants[step]
            buffer.holders += 1
            frame[step.results[0].slot] = buffer
            return
        kept = {a.slot for a, source in step.in_place if self._take(a, source, frame)}
        for allocation in step.results:
            if allocation.slot not in kept:
                frame[allocation.slot] = self.allocate(allocation)
        if not isinstance(step.workspace, int) or step.workspace:
            self.live[step.positions] += step.workspace
            self.note_peak()
            self.live[step.positions] -= step.workspace
        else:
            self.note_peak()

    def _take(self, allocation: Allocation, source: int, frame: list[Buffer]) -> bool:
        """Takes over an argument's memory, unless a view of it is alive."""
        buffer = frame[source]
        # The caller holds an argument of the program, and so does its own slot until
        # its last use.
        if buffer.holders > 2:
            return False
        buffer.holders += 1
        frame[allocation.slot] = buffer
        return True

    def hold_constants(self, plans: Sequence[Plan]) -> None:
        """Allocates the constants of these functions for the whole step."""
        for plan in plans:
            for step in plan.steps:
                if step.is_constant:
                    self.constants[step] = self.allocate(step.results[0])


_NOTHING = Buffer(slice(0, 0), 0)
