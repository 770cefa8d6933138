"""
Summaries of calls. A summary is the effect of a whole call.

Consider a function that runs on a single mesh whose devices all do the same at the same
time. The function's effect on the clocks is the same in every call (`timeline.py`). The
effect on memory depends only on the arguments of the call: which arguments share
memory, and which memory only the call holds. So the function is executed once for each
such pattern of arguments, and all later calls with this pattern apply the summary. A
summary also holds on other meshes with the same devices and links.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from distir.interpreters.simulator.engine.compiled import (
    CallStep,
    CommunicationStep,
    CompiledFunction,
    ComputationStep,
    OpStep,
)
from distir.interpreters.simulator.engine.device_map import Bytes
from distir.interpreters.simulator.engine.machine import Buffer, Machine, Moments
from distir.interpreters.simulator.engine.timeline import Arrival, MeshStream, Timeline


class Pattern(NamedTuple):
    """
    The memory of a call's arguments. Arguments that share memory have the same number
    in `numbers`, an index of memories. For each memory, `own` tells whether only the
    call holds this memory, and `sizes` gives the number of bytes. `fixed` holds the
    indices of the arguments whose memory the program holds throughout.
    """

    numbers: tuple[int, ...]
    own: tuple[bool, ...]
    sizes: tuple[Bytes, ...]
    fixed: tuple[int, ...]


@dataclass(frozen=True)
class Made:
    """
    Memory that a call allocated and that is still in use when the call ends. `number`
    is the index of the memory, and `size` its bytes. If the value is still in flight,
    `started` is the index of the value's collective, and `source` the memory that this
    collective holds.
    """

    number: int
    size: Bytes
    started: int | None = None
    source: Held | None = None


@dataclass(frozen=True)
class Reduced:
    """
    The memory of an argument whose value is still in flight when the call ends.
    `number` is the index of the memory, and `started` the index of the value's
    collective.
    """

    number: int
    started: int


Held = int | OpStep | Made | Reduced
"""
Memory at the end of a call: an argument's (given by its index), a constant's (given by
its op), new memory (`Made`), or an argument's with a value in flight (`Reduced`).
"""


@dataclass(frozen=True)
class Summary:
    """
    The effect of a call on each device of its mesh.

    - `timeline`: the effect on the clocks;
    - `runs`: the number of runs of each function;
    - `peak`, `live`: the most bytes during the call, and the bytes at its end, both
      above the bytes at its start;
    - `results`: the memory of each result;
    - `new`: the bytes of each result, if all results are new memory with values that
      have arrived; else None.
    """

    timeline: Timeline
    runs: dict[CompiledFunction, int]
    peak: int
    live: int
    results: tuple[Held, ...]
    new: tuple[Bytes, ...] | None


class SummarisingMachine(Machine):
    """
    A machine with one position (one set of clocks) per mesh. The machine applies
    summaries instead of executing calls. `places` holds the positions of each mesh.
    """

    def __init__(self, meshes: int, summaries: Summaries | None = None):
        super().__init__(meshes)
        self.summaries = summaries or Summaries()
        self.places = [slice(mesh, mesh + 1) for mesh in range(meshes)]

    def play(self, timeline: Timeline, mesh: int) -> Sequence[Arrival]:
        """
        Applies the effect of a function to the clocks of the mesh at position `mesh`.
        Returns the arrival of each asynchronous collective that the function starts.
        """
        raise NotImplementedError

    def _call(self, step: CallStep, frame: list[Buffer]) -> None:
        if step.mesh is None:
            super()._call(step, frame)
            return
        # The callee frees arguments that the caller no longer needs.
        for slot in step.dying:
            frame[slot].holders -= 1
        returned = self.summaries.call(self, step, frame)
        frame[step.defined.start : step.defined.stop] = returned
        for slot in step.unused:
            self.release(frame[slot])


class Summaries:
    """
    The summaries of functions, by function and pattern of arguments. The first call of
    a function with a pattern makes the summary, by executing the function. Programs
    with common functions may share one object.
    """

    def __init__(self) -> None:
        self._known: dict[object, Summary] = {}

    def call(
        self, machine: SummarisingMachine, step: CallStep, frame: Sequence[Buffer]
    ) -> list[Buffer]:
        """
        Calls a function on one mesh by applying its summary. `step` is the call, and
        `frame` holds its operands. The call frees operands that no other value holds,
        and returns the results.
        """
        mesh, compiled, fixed = step.mesh, step.callee, step.fixed
        assert mesh is not None
        buffers = [frame[slot] for slot in step.operands]
        numbers = None
        if len(set(buffers)) < len(buffers):
            place = {buffer: i for i, buffer in enumerate(dict.fromkeys(buffers))}
            numbers = tuple([place[buffer] for buffer in buffers])
            buffers = list(place)
        own = tuple([not buffer.holders for buffer in buffers])
        sizes = tuple([buffer.size for buffer in buffers])
        places = fixed.places if fixed is not None else ()
        key = (compiled, numbers, own, sizes, places)
        summary = self._known.get(key)
        if summary is None:
            numbers = numbers or tuple(range(len(buffers)))
            pattern = Pattern(numbers, own, sizes, places)
            summary = self._known[key] = self._run(machine, compiled, pattern)
        peak, live = machine.peak, machine.live
        peak[mesh] = max(peak[mesh], live[mesh] + summary.peak)
        live[mesh] += summary.live
        for called, count in summary.runs.items():
            machine.runs[called] = machine.runs.get(called, 0) + count
        arrivals = machine.play(summary.timeline, mesh)
        where = machine.places[mesh]
        if summary.new is not None:
            return [Buffer(where, size) for size in summary.new]
        made: dict[int, Buffer] = {}

        def fly(buffer: Buffer, started: int) -> None:
            buffer.departure, buffer.arrival, buffer.stream = arrivals[started]

        def hold(what: Held) -> Buffer:
            if isinstance(what, Reduced):
                buffer = buffers[what.number]
                fly(buffer, what.started)
            elif isinstance(what, int):
                if what < len(buffers):
                    buffer = buffers[what]
                else:
                    assert fixed is not None
                    buffer = frame[fixed.slots[what - len(buffers)]]
            elif isinstance(what, OpStep):
                buffer = machine.constants[what]
            elif what.number in made:
                buffer = made[what.number]
            else:
                buffer = made[what.number] = Buffer(where, what.size)
                buffer.holders = 0
                if what.started is not None:
                    fly(buffer, what.started)
                if what.source is not None:
                    buffer.source = hold(what.source)
            buffer.holders += 1
            return buffer

        return [hold(result) for result in summary.results]

    def _run(
        self, outer: SummarisingMachine, compiled: CompiledFunction, pattern: Pattern
    ) -> Summary:
        """
        Executes a function on memory of its own, and returns the summary of the
        function for a pattern of arguments.
        """
        mesh = compiled.mesh
        assert mesh is not None
        machine = _TimelineRecorder(outer.devices, self)
        machine.constants = outer.constants
        where = machine.places[mesh]
        buffers = [Buffer(where, size) for size in pattern.sizes]
        for buffer, is_own in zip(buffers, pattern.own, strict=True):
            # Another holder keeps this memory from being freed.
            buffer.holders = 0 if is_own else 1
        others = iter([buffers[number] for number in pattern.numbers])
        held_throughout = {place: Buffer(where, 0) for place in pattern.fixed}
        buffers += held_throughout.values()
        arguments = [
            held_throughout[place] if place in held_throughout else next(others)
            for place in range(compiled.arguments)
        ]
        for buffer in arguments:
            buffer.holders += 1
        returned = machine.run(compiled, arguments)
        numbers = {buffer: number for number, buffer in enumerate(buffers)}
        constants = {buffer: step for step, buffer in machine.constants.items()}
        made: dict[Buffer, int] = {}

        def held(buffer: Buffer) -> Held:
            if buffer in numbers:
                number = numbers[buffer]
                if buffer.arrival is None:
                    return number
                return Reduced(number, machine.number_of(buffer.arrival))
            if buffer in constants:
                buffer.holders -= 1
                return constants[buffer]
            number = made.setdefault(buffer, len(made))
            started = None
            if buffer.arrival is not None:
                started = machine.number_of(buffer.arrival)
            source = None if buffer.source is None else held(buffer.source)
            return Made(number, buffer.size, started, source)

        results = tuple([held(buffer) for buffer in returned])
        new = [r for r in results if isinstance(r, Made) and r.started is None]
        is_new = len(new) == len(made) == len(results)
        return Summary(
            machine.timeline,
            machine.runs,
            int(machine.peak[mesh]),
            int(machine.live[mesh]),
            results,
            tuple([r.size for r in new]) if is_new else None,
        )


class _TimelineRecorder(SummarisingMachine):
    """
    A machine that records the effects on the clocks of one mesh instead of applying
    them. In this machine, the `arrival` of a value in flight is the index of the
    value's collective.
    """

    def __init__(self, meshes: int, summaries: Summaries):
        super().__init__(meshes, summaries)
        self.timeline = Timeline()
        self._stream = MeshStream()

    def number_of(self, arrival: Moments) -> int:
        """Returns the index of the collective whose value arrives at `arrival`."""
        assert isinstance(arrival, float)
        return int(arrival)

    def play(self, timeline: Timeline, mesh: int) -> Sequence[Arrival]:
        first = self.timeline.append(timeline)
        numbers = [float(first + i) for i in range(timeline.started)]
        return [Arrival(number, number, self._stream) for number in numbers]

    def wait_for(self, buffer: Buffer) -> None:
        if buffer.arrival is not None:
            self.timeline.wait(self.number_of(buffer.arrival))
            self._arrive(buffer)

    def _start(self, step: CommunicationStep, frame: list[Buffer]) -> None:
        (transfer,) = step.transfers
        seconds = float(transfer.seconds)
        number = float(self.timeline.start(seconds, transfer.axes, transfer.loads))
        self._send_off(step, frame, number, number)

    def _compute(self, step: ComputationStep) -> None:
        self.timeline.compute(float(step.seconds))

    def _communicate(self, step: CommunicationStep) -> None:
        for transfer in step.transfers:
            self.timeline.collective(
                float(transfer.seconds), transfer.axes, transfer.loads
            )
