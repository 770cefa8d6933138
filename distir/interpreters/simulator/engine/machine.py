"""
Executes compiled functions on clocks, with DistIR's synchronous semantics and
asynchronous communication beside it.

Ops run in program order. A device does one thing at a time. A computation occupies each
of its devices independently. A collective or send makes its devices wait for each
other, and occupies all of them. Asynchronous communication leaves the devices free.
Asynchronous collectives run on the communication streams of their devices
(`streams.py`). Asynchronous sends between two devices run one after the other. A send
starts when the sender reaches the send in program order; a profile may say that the
sender is busy meanwhile. A device waits for a value in flight at its first use of the
value, which may be in a different function than the start of the communication.

Results are allocated before operands are freed. A value is freed after its last use,
across calls too. The operand of an asynchronous collective is freed at the end of the
collective, unless the collective works in place, as an all-reduce does. A result that
updates an argument of the program may take over the argument's memory. Sums and
all-reduces may take over the memory of an operand that no later op needs (see
`Compiler`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from distir.interpreters.simulator.engine.compiled import (
    Allocation,
    CallStep,
    CommunicationStep,
    CompiledFunction,
    ComputationStep,
    OpStep,
)
from distir.interpreters.simulator.engine.computations import Seconds
from distir.interpreters.simulator.engine.device_map import Bytes, Positions
from distir.interpreters.simulator.engine.streams import (
    CommunicationStreams,
    DeviceStream,
)
from distir.interpreters.simulator.engine.timeline import MeshStream


class Execution(NamedTuple):
    """
    One execution of an op: its step, the calls that led to it (`path`), its devices (as
    indices in the machine's arrays), and the start and duration in seconds on each
    device. The duration may be one number for all devices.
    """

    step: ComputationStep | CommunicationStep
    path: Sequence[CallStep]
    positions: Positions | npt.NDArray[np.intp]
    start: npt.NDArray[np.float64]
    seconds: Seconds


Observer = Callable[[Execution], None]
"""A function that is called with every execution of an op."""

Moments = float | npt.NDArray[np.float64]
"""
A point in time in seconds: a number for the devices of one mesh, or one per device of
the program.
"""


class Buffer:
    """
    Memory on the devices at `positions` (indices in the machine's arrays), with `size`
    bytes on each. `holders` is the number of values that hold the memory; new memory
    has one.

    Four fields are set while a value is in flight, and None otherwise. `stream` is the
    stream of the value's collective (None for a send), and `arrival` the time of
    arrival without the stream's delay. `departure` is the time at which the
    communication began: of this value or, if communication went on without a pause, of
    the first value in this period. `source` is the memory that the value is made from;
    this memory must not be freed before the arrival.
    """

    __slots__ = (
        "arrival",
        "departure",
        "holders",
        "positions",
        "size",
        "source",
        "stream",
    )

    def __init__(self, positions: Positions, size: Bytes):
        self.positions = positions
        self.size = size
        self.holders = 1
        self.arrival: Moments | None = None
        self.departure: Moments | None = None
        self.source: Buffer | None = None
        self.stream: DeviceStream | MeshStream | None = None


class Machine:
    """
    The state of all devices while a program runs. Arrays have one entry per device.

    - `clock`: the time of the compute stream in seconds; `idle`: the seconds waited;
      `transit`: the part of `idle` in which the awaited value is being sent;
    - `live`, `peak`: the bytes in use now, and the most bytes in use so far; `held`:
      the bytes in use from the start of the program to its end;
    - `streams`: the streams of asynchronous collectives; `contention`: the share of a
      device that computations lose while a stream is busy, or None if this share is 0
      for all devices;
    - `channels`: the times at which asynchronous sends end. A key stands for the pairs
      of devices of one send, and its entry has one time per pair;
    - `runs`: the number of runs of each function (see `Totals`);
    - `constants`: the memory of each constant.

    The `observer`, if given, is called with every op.
    """

    def __init__(
        self,
        devices: int,
        observer: Observer | None = None,
    ):
        self.devices = devices
        self.clock = np.zeros(devices)
        self.streams = CommunicationStreams(devices)
        self.contention: npt.NDArray[np.float64] | None = None
        self.channels: dict[bytes, npt.NDArray[np.float64]] = {}
        self.idle = np.zeros(devices)
        self.transit = np.zeros(devices)
        self.live = np.zeros(devices, dtype=np.int64)
        self.peak = np.zeros(devices, dtype=np.int64)
        self.held = np.zeros(devices, dtype=np.int64)
        self.runs: dict[CompiledFunction, int] = {}
        self.constants: dict[OpStep, Buffer] = {}
        self._observer = observer
        # Views of the arrays, keyed by the id of their slice, and stored with it.
        # Indexing the arrays anew for every op would take a third of the time.
        self._clocks: dict[int, tuple[slice, npt.NDArray[np.float64]]] = {}
        self._lives: dict[int, tuple[slice, npt.NDArray[np.int64]]] = {}
        self._path: list[CallStep] = []

    @property
    def end(self) -> float:
        """
        The time in seconds at which the last device and the last communication are
        done.
        """
        sends = [float(clock.max()) for clock in self.channels.values()]
        busy = float(self.streams.busy.max())
        return max(float(self.clock.max()), busy, *sends, 0.0)

    def allocate(self, allocation: Allocation) -> Buffer:
        """
        Allocates memory for a value and returns it, with the value as its only holder.
        """
        _, positions, size = allocation
        known = self._lives.get(id(positions))
        if known is not None:
            live = known[1]
            live += size
        else:
            self.live[positions] += size
            if isinstance(positions, slice):
                self._lives[id(positions)] = positions, self.live[positions]
        return Buffer(positions, size)

    def release(self, buffer: Buffer) -> None:
        """Removes one holder of the memory. Memory without holders is freed."""
        buffer.holders -= 1
        if not buffer.holders:
            known = self._lives.get(id(buffer.positions))
            if known is not None:
                live = known[1]
                live -= buffer.size
            else:
                self.live[buffer.positions] -= buffer.size
            if buffer.source is not None:  # nobody has waited for it
                source, buffer.source = buffer.source, None
                self.release(source)

    def note_peak(self) -> None:
        """Raises the peak of each device to the bytes now in use, if these are more."""
        np.maximum(self.peak, self.live, out=self.peak)

    def run(
        self, compiled: CompiledFunction, arguments: Sequence[Buffer]
    ) -> list[Buffer]:
        """
        Runs a function and returns its results, which may still be in flight. For each
        argument, the caller gives up one of the memory's holders; for each result, the
        caller becomes a holder.
        """
        self.runs[compiled] = self.runs.get(compiled, 0) + 1
        frame: list[Buffer] = [
            *arguments,
            *([_NOTHING] * (compiled.slots - compiled.arguments)),
        ]
        for slot in compiled.unused:
            self.release(frame[slot])
        for step in compiled.steps:
            for slot in step.operands:
                if frame[slot].arrival is not None:
                    self.wait_for(frame[slot])
            if isinstance(step, CallStep):
                self._call(step, frame)
                continue
            if isinstance(step, ComputationStep):
                self._compute(step)
                self._store(step, frame)
            elif isinstance(step, CommunicationStep):
                if step.is_asynchronous:
                    self._start(step, frame)
                else:
                    self._communicate(step)
                    self._allocate_results(step, frame)
            for slot in step.dying:
                self.release(frame[slot])
            for slot in step.unused:
                self.release(frame[slot])
        results = [frame[slot] for slot in compiled.returns]
        for buffer in results:
            buffer.holders += 1
        for slot in dict.fromkeys(compiled.returns):
            self.release(frame[slot])
        return results

    def _call(self, step: CallStep, frame: list[Buffer]) -> None:
        arguments = [frame[slot] for slot in step.operands]
        for buffer in arguments:
            buffer.holders += 1
        # The callee frees arguments that the caller no longer needs.
        for slot in step.dying:
            self.release(frame[slot])
        self._path.append(step)
        frame[step.defined.start : step.defined.stop] = self.run(step.callee, arguments)
        self._path.pop()
        for slot in step.unused:
            self.release(frame[slot])

    def wait_for(self, buffer: Buffer) -> None:
        """Makes the devices of a value that is in flight wait until it has arrived."""
        if buffer.arrival is None or buffer.departure is None:
            return
        arrival = buffer.arrival
        if buffer.stream is not None:
            arrival = arrival + buffer.stream.delay
        waits = np.maximum(arrival - self.clock, 0.0)
        self.transit += np.minimum(waits, arrival - buffer.departure)
        self.idle += waits
        self.clock += waits
        self._arrive(buffer)

    def _arrive(self, buffer: Buffer) -> None:
        """Marks a value as arrived, and releases the memory that it was made from."""
        buffer.arrival = buffer.departure = buffer.stream = None
        if buffer.source is not None:
            source, buffer.source = buffer.source, None
            self.release(source)

    def _start(self, step: CommunicationStep, frame: list[Buffer]) -> None:
        """
        Starts asynchronous communication. Devices go on without waiting, except senders
        that the communication occupies.
        """
        departure, arrival = np.zeros_like(self.clock), np.zeros_like(self.clock)
        busy = np.zeros_like(self.clock)
        stream = None
        for transfer in step.transfers:
            rows = transfer.positions
            if step.is_collective:
                stream, start = self.streams.start(transfer, self.clock)
                end = start + transfer.seconds
                departure[rows] = self.streams.since[rows]
                arrival[rows] = end[:, None] - stream.delay[rows]
            else:
                senders, receivers = rows.T
                pairs = rows.tobytes()
                start = np.maximum(self.clock[senders], self.channels.get(pairs, 0.0))
                # A device sends or receives the pieces of a value one after the other.
                start = np.maximum(start, np.maximum(busy[senders], busy[receivers]))
                end = self.channels[pairs] = start + transfer.seconds
                busy[senders] = busy[receivers] = end
                if transfer.occupies:
                    waits = end - self.clock[senders]
                    self.idle[senders] += waits
                    self.transit[senders] += waits
                    self.clock[senders] = end
                begun = arrival[receivers] > 0
                departure[receivers] = np.where(begun, departure[receivers], start)
                arrival[receivers] = end
            self._observe(step, rows, start, end - start)
        self._send_off(step, frame, departure, arrival, stream)

    def _send_off(
        self,
        step: CommunicationStep,
        frame: list[Buffer],
        departure: Moments,
        arrival: Moments,
        stream: DeviceStream | MeshStream | None = None,
    ) -> None:
        """
        Allocates the memory of a value that is in flight from `departure` to `arrival`.
        A collective has a `stream`, whose delay is added to `arrival`.
        """
        self._allocate_results(step, frame)
        received = frame[step.results[0].slot]
        received.departure, received.arrival = departure, arrival
        received.stream = stream
        if step.holds_operand:
            received.source = frame[step.operands[0]]
            received.source.holders += 1

    def _observe(
        self,
        step: CommunicationStep,
        rows: npt.NDArray[np.intp],
        start: npt.NDArray[np.float64],
        seconds: Seconds,
    ) -> None:
        """
        Reports a transfer to the observer: the devices `rows`, with one row per group,
        the start of each group, and the duration, both in seconds.
        """
        if self._observer is not None:
            starts = np.broadcast_to(start[:, None], rows.shape).ravel()
            each = np.broadcast_to(seconds, start.shape)
            lasting = np.broadcast_to(each[:, None], rows.shape).ravel()
            self._observer(Execution(step, self._path, rows.ravel(), starts, lasting))

    def _compute(self, step: ComputationStep) -> None:
        """Runs a computation on each of its devices independently."""
        clock, positions, seconds = self.clock, step.positions, step.seconds
        if self.contention is not None and self.streams.by_axes:
            began = clock[positions]
            seconds = self.streams.beside(positions, began, seconds, self.contention)
        if self._observer is not None:
            start = clock[positions].copy()
            self._observer(Execution(step, self._path, positions, start, seconds))
        known = self._clocks.get(id(positions))
        if known is not None:
            part = known[1]
            part += seconds
        else:
            clock[positions] += seconds
            if isinstance(positions, slice):
                self._clocks[id(positions)] = positions, clock[positions]

    def _communicate(self, step: CommunicationStep) -> None:
        """
        Runs synchronous communication: devices wait for each other, and are then busy.
        """
        clock = self.clock
        uses_stream = step.is_collective and bool(self.streams.by_axes)
        for transfer in step.transfers:
            if uses_stream:
                self.streams.join(transfer, clock, self.idle, self.transit)
            rows = clock[transfer.positions]
            start = rows.max(axis=1)
            self.idle[transfer.positions] += start[:, None] - rows
            seconds = transfer.seconds
            if uses_stream:
                seconds = self.streams.share(transfer, start)
            self._observe(step, transfer.positions, start, seconds)
            clock[transfer.positions] = (start + seconds)[:, None]

    def _store(self, step: ComputationStep, frame: list[Buffer]) -> None:
        """
        Stores the results of a computation in `frame`, the memory of the running
        function's values by slot.
        """
        if step.view_of is not None:
            buffer = frame[step.view_of]
            for slot in step.defined:
                buffer.holders += 1
                frame[slot] = buffer
            return
        if step.is_constant:
            buffer = self.constants[step]
            buffer.holders += 1
            frame[step.results[0].slot] = buffer
            return
        self._allocate_results(step, frame)

    def _allocate_results(self, step: OpStep, frame: list[Buffer]) -> None:
        """
        Allocates memory for the results of an op, or lets the results take over the
        memory of values that are no longer needed.
        """
        made: Sequence[Allocation]
        if step.reusable and self._reuse(step, frame):
            made = ()
        elif step.in_place:
            kept = [
                a.slot for a, source in step.in_place if self._take(a, source, frame)
            ]
            made = [a for a in step.results if a.slot not in kept]
        else:
            made = step.results
        for allocation in made:
            frame[allocation.slot] = self.allocate(allocation)
        if not isinstance(step.workspace, int) or step.workspace:
            self.live[step.positions] += step.workspace
            self.note_peak()
            self.live[step.positions] -= step.workspace
        else:
            self.note_peak()

    def _reuse(self, step: OpStep, frame: list[Buffer]) -> bool:
        """
        Makes the result of `step` take over the memory of an operand that no later step
        needs and no other value holds. Returns whether there was such an operand.
        """
        for slot in step.reusable:
            if slot in step.dying and frame[slot].holders == 1:
                frame[slot].holders += 1
                frame[step.results[0].slot] = frame[slot]
                return True
        return False

    def _take(self, allocation: Allocation, source: int, frame: list[Buffer]) -> bool:
        """
        Makes a result take over the memory of the argument in slot `source`, unless a
        view of the argument is still in use. Returns whether the result took over the
        memory.
        """
        buffer = frame[source]
        # An argument of the program has two holders: the caller, and its own slot until
        # its last use.
        if buffer.holders > 2:
            return False
        buffer.holders += 1
        frame[allocation.slot] = buffer
        return True

    def hold_constants(
        self, compiled: CompiledFunction, positions: Positions | None = None
    ) -> None:
        """
        Allocates the constants of a function for the whole step, at `positions` of the
        machine's arrays. If `positions` is None, the constants are on the devices that
        the function was compiled for.
        """
        for step in compiled.steps:
            if isinstance(step, ComputationStep) and step.is_constant:
                (result,) = step.results
                if positions is not None:
                    result = result._replace(positions=positions)
                self._hold_constant(step, result)

    def _hold_constant(self, step: OpStep, result: Allocation) -> None:
        self.constants[step] = self.allocate(result)


_NOTHING = Buffer(slice(0, 0), 0)
