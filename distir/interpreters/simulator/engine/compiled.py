"""
A function compiled for simulation: what each op occupies, for how long, and what it does to
memory, computed once however often the function is called.
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
"""The positions of steps whose transfers or callee say where they happen."""


class Allocation(NamedTuple):
    """
    The memory of a result: its slot, where it lives, and its bytes on each of these
    devices.
    """

    slot: int
    positions: Positions
    size: Bytes


@dataclass(eq=False)
class CompiledOp:
    """
    One step of a compiled function.

    Either it computes `flops` on each of `positions` for `seconds` (a number, or one per
    device; the `flops` alone would take `seconds_at_peak`); or it communicates by
    `transfers`, as a collective or a send (if it `is_asynchronous`, while its devices
    compute; if it `holds_operand`, its operand's memory is needed until it is done); or it
    calls `callee`, all of which happens on position `mesh` (None: on several). The host
    takes `issue` seconds to issue it.

    Slots number the values of the function: `defined` are those of the results, and
    `results` the memory of these, unless a callee allocates it. `view_of` is the slot whose
    memory the (only) result shares; `in_place` has pairs of a result's slot and of the
    argument's whose memory the result may take over. `dying` are the slots used here for
    the last time, `unused` the results that nothing uses. `fixed` are arguments of the
    program that a call takes besides its operands.
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
        """
        Returns a copy with other slots: those in `slots` as it says, all others shifted by
        `by`.
        """
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
    Arguments of the program that are the same for many calls of a function: their `slots`,
    and their `places` among the function's arguments. The program holds their memory
    throughout, so that a call has nothing to do for them.
    """

    slots: tuple[int, ...]
    places: tuple[int, ...]


@dataclass(eq=False)
class CompiledFunction:
    """
    A compiled function: its `arguments`, its `steps`, the number of its `slots` (arguments
    come first), the slots of arguments that nothing uses, and those that it returns. `mesh`
    is the one position on which all of it happens, one step after the other; None if there
    are several, or sends.
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
    A compiled function as a program uses it: on a mesh that is like the one it was compiled
    for, or (None) on the very meshes it was compiled for.
    """

    function: CompiledFunction
    mesh: str | None = None
