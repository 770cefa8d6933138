"""
What a call does, as a whole.

A function that runs on one mesh alone, whose devices do the same at the same time, goes
through the same moments whenever it is called (`timeline.py`), and changes the memory of
its devices in a way that depends on nothing but which arguments are the same memory and
which of them nobody else holds. So it is executed once for each such pattern; every other
call applies the outcome, whatever the function holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from distir.interpreters.simulator.engine.compiled import CompiledFunction, CompiledOp
from distir.interpreters.simulator.engine.device_map import Bytes
from distir.interpreters.simulator.engine.machine import Buffer, Machine
from distir.interpreters.simulator.engine.timeline import Timeline


class Pattern(NamedTuple):
    """
    Per argument the number of its memory among those of the arguments; per such memory
    whether nobody but the call holds it, and its bytes.
    """

    numbers: tuple[int, ...]
    own: tuple[bool, ...]
    sizes: tuple[Bytes, ...]


@dataclass(frozen=True)
class Made:
    """
    Memory that a call made and that is there when it ends: its number, its bytes and, if
    it is still on its way then, the number of its collective and the memory that this holds.
    """

    number: int
    size: Bytes
    started: int | None = None
    source: Held | None = None


Held = int | Buffer | Made
"""Memory: that of an argument (its number), a constant, or made by the call."""


@dataclass(frozen=True)
class Summary:
    """
    The effect of a call on each device of its mesh: what it does to the clocks, how often
    it runs functions, the bytes above those at the call, at most (`peak`) and in the end
    (`live`), and the memory of each result.
    """

    timeline: Timeline
    runs: dict[CompiledFunction, int]
    peak: int
    live: int
    results: tuple[Held, ...]


class Summaries:
    """The summaries of one program on `meshes` positions."""

    def __init__(self, meshes: int):
        self.meshes = meshes
        self._known: dict[tuple[CompiledFunction, Pattern], Summary] = {}

    def call(
        self, machine: Machine, compiled: CompiledFunction, arguments: Sequence[Buffer]
    ) -> list[Buffer]:
        """`Machine.run` for a function on one mesh: takes the arguments, gives results."""
        mesh = compiled.mesh
        assert mesh is not None
        buffers = list(dict.fromkeys(arguments))
        for buffer in arguments:
            buffer.holders -= 1
        numbers = range(len(buffers))
        if len(buffers) < len(arguments):
            place = dict(zip(buffers, numbers, strict=True))
            numbers = [place[buffer] for buffer in arguments]
        pattern = Pattern(
            tuple(numbers),
            tuple([not buffer.holders for buffer in buffers]),
            tuple([buffer.size for buffer in buffers]),
        )
        key = (compiled, pattern)
        if key not in self._known:
            self._known[key] = self._run(machine, compiled, pattern)
        summary = self._known[key]
        machine.peak[mesh] = max(machine.peak[mesh], machine.live[mesh] + summary.peak)
        machine.live[mesh] += summary.live
        for called, count in summary.runs.items():
            machine.runs[called] = machine.runs.get(called, 0) + count
        arrivals = machine.play(summary.timeline, mesh)
        made: dict[int, Buffer] = {}

        def hold(what: Held) -> Buffer:
            if isinstance(what, int):
                buffer = buffers[what]
            elif isinstance(what, Buffer):
                buffer = what
            elif what.number in made:
                buffer = made[what.number]
            else:
                buffer = made[what.number] = Buffer(slice(mesh, mesh + 1), what.size)
                buffer.holders = 0
                if what.started is not None:
                    buffer.departure, buffer.arrival = arrivals[what.started]
                if what.source is not None:
                    buffer.source = hold(what.source)
            buffer.holders += 1
            return buffer

        return [hold(result) for result in summary.results]

    def _run(
        self, outer: Machine, compiled: CompiledFunction, pattern: Pattern
    ) -> Summary:
        """Executes the function on memory of its own."""
        mesh = compiled.mesh
        assert mesh is not None
        machine = _TimelineRecorder(self.meshes, self)
        machine.constants = outer.constants
        where = slice(mesh, mesh + 1)
        buffers = [Buffer(where, size) for size in pattern.sizes]
        for buffer, is_own in zip(buffers, pattern.own, strict=True):
            # Somebody else's hold keeps the memory from being freed here.
            buffer.holders = 0 if is_own else 1
        arguments = [buffers[number] for number in pattern.numbers]
        for buffer in arguments:
            buffer.holders += 1
        returned = machine.run(compiled, arguments)
        numbers = {buffer: number for number, buffer in enumerate(buffers)}
        constants = set(machine.constants.values())
        made: dict[Buffer, int] = {}

        def held(buffer: Buffer) -> Held:
            if buffer in numbers:
                return numbers[buffer]
            if buffer in constants:
                buffer.holders -= 1
                return buffer
            number = made.setdefault(buffer, len(made))
            started = None if buffer.arrival is None else int(buffer.arrival[0])
            source = None if buffer.source is None else held(buffer.source)
            return Made(number, buffer.size, started, source)

        return Summary(
            machine.timeline,
            machine.runs,
            int(machine.peak[mesh]),
            int(machine.live[mesh]),
            tuple([held(buffer) for buffer in returned]),
        )


class _TimelineRecorder(Machine):
    """
    A machine that writes down what happens to the clocks of one mesh instead of changing
    them. A value on its way has in `arrival` the number of its collective.
    """

    def __init__(self, meshes: int, summaries: Summaries):
        super().__init__(meshes, summaries=summaries)
        self.timeline = Timeline()

    def play(
        self, timeline: Timeline, mesh: int
    ) -> list[tuple[np.typing.NDArray[np.float64], np.typing.NDArray[np.float64]]]:
        first = self.timeline.append(timeline)
        numbers = [np.array([float(first + i)]) for i in range(timeline.started)]
        return [(number, number) for number in numbers]

    def wait_for(self, buffer: Buffer) -> None:
        if buffer.arrival is not None:
            self.timeline.wait(int(buffer.arrival[0]))
            self._arrive(buffer)

    def _start(self, step: CompiledOp, frame: list[Buffer]) -> None:
        (transfer,) = step.transfers
        number = np.array([float(self.timeline.start(float(transfer.seconds)))])
        self._send_off(step, frame, number, number)

    def _occupy(self, step: CompiledOp) -> None:
        if not step.transfers:
            self.timeline.compute(float(step.seconds))
        for transfer in step.transfers:
            self.timeline.collective(float(transfer.seconds))
