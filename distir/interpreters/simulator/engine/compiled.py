"""
A function compiled for simulation. For each op, the compiled function holds the devices
that the op occupies, the time, and the changes of memory. The compiler computes these
facts once for all calls of the function.
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
"""
The positions of steps whose devices are given elsewhere, by their transfers or their
callee.
"""


class Allocation(NamedTuple):
    """
    The memory of a value: its slot (index among the function's values), the positions
    of its devices (indices in arrays over devices), and its bytes on each of these
    devices.
    """

    slot: int
    positions: Positions
    size: Bytes


@dataclass(frozen=True, eq=False)
class FixedOperands:
    """
    Arguments of the program that are the same for many calls of a function: their
    `slots` (indices among the caller's values), and their `places` (indices among the
    function's arguments). Their memory stays allocated throughout, so calls need not
    hold or free it.
    """

    slots: tuple[int, ...]
    places: tuple[int, ...]


@dataclass(eq=False, kw_only=True)
class CompiledStep:
    """
    One step of a compiled function: a call of another function, or an op.

    Slots are the indices of the function's values. The step uses the slots `operands`
    and sets the slots `defined`. No later step uses the slots `dying`. No step uses the
    results in the slots `unused`.
    """

    op: Operation
    operands: tuple[int, ...]
    defined: range
    dying: tuple[int, ...] = ()
    unused: tuple[int, ...] = ()

    def moved(self, slots: Mapping[int, int], by: int) -> Self:
        """
        Returns a copy of the step with renumbered slots (indices of values). `slots`
        maps old to new slots; a slot that `slots` lacks is increased by `by`.
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
    A call of the function `callee`. `mesh` is the index of the mesh that runs the whole
    call, in arrays with one entry per mesh; `mesh` is None if several meshes run the
    call. `fixed` holds arguments of the program that the call takes in addition to its
    operands.
    """

    callee: CompiledFunction
    mesh: int | None
    fixed: FixedOperands | None = None


@dataclass(eq=False, kw_only=True)
class OpStep(CompiledStep):
    """
    Base of the steps that are not calls.

    - `positions`, `workspace`: the devices that the op occupies, and the bytes that the
      op needs there while it runs, besides operands and results;
    - `results`: the memory of the results;
    - `in_place`: pairs of a result's memory and the slot of an argument whose memory
      the result may take over;
    - `reusable`: the slots of operands whose memory the only result takes over if no
      later step needs the operand;
    - `issue`: the seconds in which the host issues the op.
    """

    positions: Positions
    results: tuple[Allocation, ...]
    workspace: Bytes = 0
    issue: float = 0.0
    in_place: tuple[tuple[Allocation, int], ...] = ()
    reusable: tuple[int, ...] = ()

    def moved(self, slots: Mapping[int, int], by: int) -> Self:
        """
        Returns a copy of the step with renumbered slots (indices of values). `slots`
        maps old to new slots; a slot that `slots` lacks is increased by `by`.
        """
        found = super().moved(slots, by)
        if self.reusable:
            found.reusable = tuple([slots.get(s, s + by) for s in self.reusable])
        far = found.defined.start - self.defined.start
        found.results = tuple([Allocation(s + far, at, n) for s, at, n in self.results])
        return found


@dataclass(eq=False, kw_only=True)
class ComputationStep(OpStep):
    """
    A computation.

    - `seconds`: the time on each of `positions`, one number for all or one per device;
    - `flops`: the floating-point operations on each device, and `seconds_at_peak` their
      time at the device's peak; `recomputed` is the share of `flops` in which a
      backward pass repeats work of the forward pass;
    - `view_of`: the slot of the value whose memory the results share, if any; `is_part`
      tells whether the results are only a part of this value;
    - `shapes`: the shapes of operands and results on one device; `operand_bytes`: the
      bytes of operands;
    - `is_constant`: whether the step is a constant, which is in memory throughout.
    """

    seconds: Seconds = 0.0
    flops: float = 0.0
    seconds_at_peak: Seconds = 0.0
    recomputed: float = 0.0
    view_of: int | None = None
    is_part: bool = False
    shapes: tuple[tuple[int, ...], ...] = ()
    operand_bytes: tuple[int, ...] = ()
    is_constant: bool = False

    def moved(self, slots: Mapping[int, int], by: int) -> Self:
        """
        Returns a copy of the step with renumbered slots (indices of values). `slots`
        maps old to new slots; a slot that `slots` lacks is increased by `by`.
        """
        found = super().moved(slots, by)
        if self.view_of is not None:
            found.view_of = slots.get(self.view_of, self.view_of + by)
        return found


@dataclass(eq=False, kw_only=True)
class CommunicationStep(OpStep):
    """
    A collective or a send, made of `transfers`. If `is_asynchronous` is set, the
    devices compute during the communication. If `holds_operand` is set, the operand's
    memory is freed only at the end of the communication.
    """

    transfers: tuple[Transfer, ...]
    is_asynchronous: bool
    is_collective: bool
    holds_operand: bool


@dataclass(eq=False)
class CompiledFunction:
    """
    A compiled function. A slot is the index of one of its values.

    - `arguments`, `slots`: the number of arguments, and of all values; arguments have
      the first slots;
    - `unused`: the slots of arguments that nothing uses;
    - `returns`: the slots of the results;
    - `steps`: the steps, in order;
    - `mesh`: the index of the only mesh that runs the steps, one after the other, in
      arrays with one entry per mesh; None if there are several, or sends;
    - `given_up`: the indices of arguments that are caches of inference; results may
      take over the memory of these arguments.
    """

    name: str
    arguments: int
    slots: int = 0
    unused: tuple[int, ...] = ()
    returns: tuple[int, ...] = ()
    steps: list[CompiledStep] = field(default_factory=list[CompiledStep])
    mesh: int | None = None
    given_up: frozenset[int] = frozenset()


class PlacedFunction(NamedTuple):
    """
    A compiled function, and the mesh on which a program runs it. This mesh has the same
    devices and links as the mesh of the compilation. If `mesh` is None, the function
    runs on the meshes that it was compiled for.
    """

    function: CompiledFunction
    mesh: str | None = None


def is_asynchronous(step: CompiledStep) -> bool:
    """Whether a step communicates while its devices compute."""
    return isinstance(step, CommunicationStep) and step.is_asynchronous
