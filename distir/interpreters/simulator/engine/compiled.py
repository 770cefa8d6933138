"""
A function compiled for simulation: what each op occupies, for how long, and what it does
to memory, worked out once however often the function is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from xdsl.ir import Operation

from distir.interpreters.simulator.engine.computations import Seconds
from distir.interpreters.simulator.engine.device_map import Bytes, Positions
from distir.interpreters.simulator.engine.transfers import Transfer

NOWHERE = slice(0, 0)
"""Of steps whose transfers or callee say where they happen."""


class Allocation(NamedTuple):
    """A result: its slot, where it lives, the memory it takes on each of these devices."""

    slot: int
    positions: Positions
    size: Bytes


@dataclass(eq=False)
class CompiledOp:
    """
    One op. Either it computes `flops` on each of `positions` for `seconds` (a number, or
    one per device; the `flops` alone would take `seconds_at_peak`), or it communicates by
    `transfers` (while its devices compute, if it `is_asynchronous`; `holds_operand`: its
    operand's memory is needed until it is done), as a collective or a send, or it calls
    `callee`, all of which happens on position `mesh` (None: on several). The host takes
    `issue` seconds to issue it.

    Slots number the values of the function, `defined` are those of the results, and `results`
    the memory of these, unless a callee gives it. `view_of` is the slot whose memory the
    (only) result shares; `in_place` has pairs of a result's slot and of the argument's
    whose memory the result may take over. `dying` are the slots used here for the last
    time, `unused` the results that nothing uses. `fixed`: arguments of the program that a
    call is given besides its operands.
    """

    op: Operation
    operands: tuple[int, ...]
    positions: Positions
    defined: range
    seconds: Seconds = 0.0
    flops: float = 0.0
    seconds_at_peak: Seconds = 0.0
    issue: float = 0.0
    workspace: Bytes = 0
    transfers: tuple[Transfer, ...] = ()
    is_asynchronous: bool = False
    is_collective: bool = False
    holds_operand: bool = False
    callee: CompiledFunction | None = None
    mesh: int | None = None
    results: tuple[Allocation, ...] = ()
    view_of: int | None = None
    in_place: tuple[tuple[Allocation, int], ...] = ()
    is_constant: bool = False
    dying: tuple[int, ...] = ()
    unused: tuple[int, ...] = ()
    fixed: FixedOperands | None = None

    def moved(self, slots: Mapping[int, int], by: int) -> CompiledOp:
        """A copy with other slots: those in `slots` as it says, all others `by` further."""
        found = object.__new__(CompiledOp)
        found.__dict__.update(self.__dict__)
        found.operands = tuple([slots.get(s, s + by) for s in self.operands])
        start, stop = self.defined.start, self.defined.stop
        far = slots[start] - start if start in slots else by
        found.defined = range(start + far, stop + far)
        found.results = tuple([Allocation(s + far, at, n) for s, at, n in self.results])
        if self.view_of is not None:
            found.view_of = slots.get(self.view_of, self.view_of + by)
        return found


@dataclass(frozen=True, eq=False)
class FixedOperands:
    """
    Arguments of the program that many calls of a function are given alike: their `slots`,
    and their `places` among the function's arguments. The program holds their memory
    throughout, so that there is nothing to do for them at a call.
    """

    slots: tuple[int, ...]
    places: tuple[int, ...]


@dataclass(eq=False)
class CompiledFunction:
    """
    A function: its `arguments`, `steps` and `slots` (their numbers; arguments come first), the
    slots of arguments that nothing uses, and those that it returns. `mesh` is the one position that all of it
    happens on, one step after the other; None where there are several, or sends.
    """

    name: str
    arguments: int
    slots: int = 0
    unused: tuple[int, ...] = ()
    returns: tuple[int, ...] = ()
    steps: list[CompiledOp] = field(default_factory=list[CompiledOp])
    mesh: int | None = None


class PlacedFunction(NamedTuple):
    """
    A function as a program uses it: on a mesh that is like the one it was compiled for; None:
    on those of its own.
    """

    function: CompiledFunction
    mesh: str | None = None
