"""
A function compiled for simulation: what each op occupies, for how long, and what it does to
memory, computed once however often the function is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

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


@dataclass(frozen=True, eq=False)
class FixedOperands:
    """
    Arguments of the program that are the same for many calls of a function: their `slots`,
    and their `places` among the function's arguments. The program holds their memory
    throughout, so that a call has nothing to do for them.
    """

    slots: tuple[int, ...]
    places: tuple[int, ...]


@dataclass(eq=False, kw_only=True)
class CompiledStep:
    """
    One step of a compiled function: the call of a function, or another op.

    Slots number the values of the function: `operands` are those that the step uses,
    `defined` those of its results. `dying` are the slots used here for the last time,
    `unused` the results that nothing uses.
    """

    op: Operation
    operands: tuple[int, ...]
    defined: range
    dying: tuple[int, ...] = ()
    unused: tuple[int, ...] = ()

    def moved(self, slots: Mapping[int, int], by: int) -> Self:
        """
        Returns a copy with other slots: those in `slots` as it says, all others shifted by
        `by`.
        """
        found = object.__new__(type(self))
        found.__dict__.update(self.__dict__)
        found.operands = tuple([slots.get(s, s + by) for s in self.operands])
        start, stop = self.defined.start, self.defined.stop
        far = slots[start] - start if start in slots else by
        found.defined = range(start + far, stop + far)
        return found


@dataclass(eq=False, kw_only=True)
class CallStep(CompiledStep):
    """
    A call of `callee`, all of which happens on position `mesh` (None: on several). `fixed`
    are arguments of the program that the call takes besides its operands.
    """

    callee: CompiledFunction
    mesh: int | None
    fixed: FixedOperands | None = None


@dataclass(eq=False, kw_only=True)
class OpStep(CompiledStep):
    """
    Base of the steps that are no calls: the memory of the `results`, and `workspace` bytes
    on `positions` meanwhile. `in_place` has pairs of a result's memory and of the slot of
    an argument whose memory the result may take over. `reusable` are operands whose memory
    the (only) result takes over where the step is the last that needs it. The host takes
    `issue` seconds to issue the op.
    """

    positions: Positions
    results: tuple[Allocation, ...]
    workspace: Bytes = 0
    issue: float = 0.0
    in_place: tuple[tuple[Allocation, int], ...] = ()
    reusable: tuple[int, ...] = ()

    def moved(self, slots: Mapping[int, int], by: int) -> Self:
        """See `CompiledStep`."""
        found = super().moved(slots, by)
        if self.reusable:
            found.reusable = tuple([slots.get(s, s + by) for s in self.reusable])
        far = found.defined.start - self.defined.start
        found.results = tuple([Allocation(s + far, at, n) for s, at, n in self.results])
        return found


@dataclass(eq=False, kw_only=True)
class ComputationStep(OpStep):
    """
    A computation of `flops` on each of `positions` for `seconds` (a number, or one per
    device); the `flops` alone would take `seconds_at_peak`. `view_of` is the slot whose
    memory the results share, of which they are a part if `is_part`. `shapes` are those of
    operands and results on a device, `operand_bytes` the bytes of operands.
    """

    seconds: Seconds = 0.0
    flops: float = 0.0
    seconds_at_peak: Seconds = 0.0
    view_of: int | None = None
    is_part: bool = False
    shapes: tuple[tuple[int, ...], ...] = ()
    operand_bytes: tuple[int, ...] = ()
    is_constant: bool = False

    def moved(self, slots: Mapping[int, int], by: int) -> Self:
        """See `CompiledStep`."""
        found = super().moved(slots, by)
        if self.view_of is not None:
            found.view_of = slots.get(self.view_of, self.view_of + by)
        return found


@dataclass(eq=False, kw_only=True)
class CommunicationStep(OpStep):
    """
    A collective or a send, by `transfers`: if it `is_asynchronous`, while its devices
    compute. If it `holds_operand`, its operand's memory is needed until it is done.
    """

    transfers: tuple[Transfer, ...]
    is_asynchronous: bool
    is_collective: bool
    holds_operand: bool


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
    steps: list[CompiledStep] = field(default_factory=list[CompiledStep])
    mesh: int | None = None


class PlacedFunction(NamedTuple):
    """
    A compiled function as a program uses it: on a mesh that is like the one it was compiled
    for, or (None) on the very meshes it was compiled for.
    """

    function: CompiledFunction
    mesh: str | None = None


def is_asynchronous(step: CompiledStep) -> bool:
    """Whether a step communicates while its devices compute."""
    return isinstance(step, CommunicationStep) and step.is_asynchronous
