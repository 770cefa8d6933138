"""
What a call does, as a whole (DESIGN section 7).

A function that runs on one mesh alone, whose devices do the same at the same time, adds a
duration to their clock and changes their memory in a way that depends on nothing but which
arguments are the same memory and which of them nobody else holds. So it is executed once
for each such pattern; every other call applies the outcome, whatever the function holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distir.interpreters.cost.machine import Buffer, Machine
from distir.interpreters.cost.placement import Bytes
from distir.interpreters.cost.plan import Plan

Pattern = tuple[tuple[int, bool, Bytes], ...]
"""
Per argument: the number of its memory among those of the arguments, whether nobody but the
call holds it, and its bytes.
"""


@dataclass(frozen=True)
class Summary:
    """
    The effect of a call on each device of its mesh.

    - `clock`, `compute`, `communication`: seconds more; `sent`: bytes more; `flops`:
      floating-point operations more, `seconds_at_peak` that they would take; `ops`: ops run;
    - `peak`, `live`: bytes above those at the call, at most and in the end;
    - `results`: for each result the memory that it is: that of an argument (its number),
      a constant, or new memory (number and bytes).
    """

    clock: float
    compute: float
    communication: float
    sent: float
    flops: float
    seconds_at_peak: float
    ops: int
    peak: int
    live: int
    results: tuple[int | Buffer | tuple[int, Bytes], ...]


class Summaries:
    """The summaries of one program on `meshes` positions."""

    def __init__(self, meshes: int):
        self.meshes = meshes
        self._known: dict[tuple[Plan, Pattern], Summary] = {}

    def call(
        self, machine: Machine, plan: Plan, arguments: Sequence[Buffer]
    ) -> list[Buffer]:
        """`Machine.run` for a function on one mesh: takes the arguments, gives results."""
        mesh = plan.mesh
        assert mesh is not None
        distinct: dict[int, int] = {}
        held: list[int] = []
        buffers: list[Buffer] = []
        for buffer in arguments:
            number = distinct.setdefault(id(buffer), len(buffers))
            if number == len(buffers):
                buffers.append(buffer)
                held.append(0)
            held[number] += 1
        own = [b.holders == count for b, count in zip(buffers, held, strict=True)]
        pattern = tuple((n := distinct[id(b)], own[n], b.size) for b in arguments)
        key = (plan, pattern)
        if key not in self._known:
            self._known[key] = self._run(machine, plan, pattern)
        summary = self._known[key]
        machine.peak[mesh] = max(machine.peak[mesh], machine.live[mesh] + summary.peak)
        machine.live[mesh] += summary.live
        machine.clock[mesh] += summary.clock
        machine.compute[mesh] += summary.compute
        machine.communication[mesh] += summary.communication
        machine.sent[mesh] += summary.sent
        machine.flops[mesh] += summary.flops
        machine.seconds_at_peak[mesh] += summary.seconds_at_peak
        machine.ops += summary.ops
        for buffer, count in zip(buffers, held, strict=True):
            buffer.holders -= count
        new: dict[int, Buffer] = {}
        results: list[Buffer] = []
        for result in summary.results:
            if isinstance(result, int):
                buffer = buffers[result]
            elif isinstance(result, Buffer):
                buffer = result
            else:
                number, size = result
                if number not in new:
                    new[number] = Buffer(slice(mesh, mesh + 1), size)
                    new[number].holders = 0
                buffer = new[number]
            buffer.holders += 1
            results.append(buffer)
        return results

    def _run(self, outer: Machine, plan: Plan, pattern: Pattern) -> Summary:
        """Executes the function on memory of its own."""
        mesh = plan.mesh
        assert mesh is not None
        machine = Machine(self.meshes, summaries=self)
        machine.constants = outer.constants
        where = slice(mesh, mesh + 1)
        buffers: dict[int, Buffer] = {}
        arguments: list[Buffer] = []
        for number, is_own, size in pattern:
            if number not in buffers:
                buffers[number] = Buffer(where, size)
                # Somebody else's hold keeps the memory from being freed here.
                buffers[number].holders = 0 if is_own else 1
            buffers[number].holders += 1
            arguments.append(buffers[number])
        returned = machine.run(plan, arguments)
        numbers = {id(buffer): number for number, buffer in buffers.items()}
        constants = {id(buffer) for buffer in machine.constants.values()}
        new: dict[int, int] = {}
        results: list[int | Buffer | tuple[int, Bytes]] = []
        for buffer in returned:
            if id(buffer) in numbers:
                results.append(numbers[id(buffer)])
            elif id(buffer) in constants:
                buffer.holders -= 1
                results.append(buffer)
            else:
                number = new.setdefault(id(buffer), len(new))
                results.append((number, buffer.size))
        return Summary(
            float(machine.clock[mesh]),
            float(machine.compute[mesh]),
            float(machine.communication[mesh]),
            float(machine.sent[mesh]),
            float(machine.flops[mesh]),
            float(machine.seconds_at_peak[mesh]),
            machine.ops,
            int(machine.peak[mesh]),
            int(machine.live[mesh]),
            tuple(results),
        )
