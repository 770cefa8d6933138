"""
A function compiled for simulation: what each op occupies, for how long, and what it does
to memory, worked out once however often the function is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from distir.dialects import collective
from distir.dialects.dist import (
    ASYNCHRONOUS,
    ReshardOp,
    SendOp,
    layout_of,
)
from distir.errors import DistIRError
from distir.interpreters.simulator.engine.computations import Computations, Seconds
from distir.interpreters.simulator.engine.device_map import (
    Bytes,
    DeviceMap,
    Positions,
    UniformDeviceMap,
)
from distir.interpreters.simulator.engine.message_buffers import buffer_bytes
from distir.interpreters.simulator.engine.pacing import pace
from distir.interpreters.simulator.engine.transfers import Transfer, transfers_of
from distir.program import describe, return_op, updated_arguments

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


class CompiledFunctionBuilder:
    """
    Makes a compiled function of steps in their order: numbers its values, and finds out
    which step uses a value last. SSA values must stay as long as this is used.
    """

    def __init__(self, name: str, arguments: int):
        self._compiled = CompiledFunction(name, arguments, arguments)
        # By the id of a value: a function may have hundreds of thousands of operands.
        self._slots: dict[int, int] = {}

    def bind(self, values: Sequence[SSAValue], first: int) -> None:
        """Says that SSA values are in consecutive slots."""
        for slot, value in enumerate(values, first):
            self._slots[id(value)] = slot

    def slots(self, values: Sequence[SSAValue]) -> tuple[int, ...]:
        """The slots of SSA values that have been bound."""
        slots = self._slots
        return tuple([slots[id(v)] for v in values])

    def define(self, count: int) -> int:
        """The first of so many new slots, for the results of the next step."""
        first = self._compiled.slots
        self._compiled.slots += count
        return first

    def add(self, step: CompiledOp) -> None:
        """The next step."""
        self._compiled.steps.append(step)

    @property
    def steps(self) -> list[CompiledOp]:
        """The steps so far, which may be put in another order that is right too."""
        return self._compiled.steps

    def finish(
        self, results: Sequence[int], updated: Mapping[int, int]
    ) -> CompiledFunction:
        """
        The function of the steps so far, which returns the slots `results`; works out for
        each step what dies with it. `updated` is for results of the program that replace an
        argument of the same type in the next step: the slot of the result to that of the
        argument.
        """
        compiled = self._compiled
        compiled.returns = tuple(results)
        # Per slot the step that uses it last, by its place in the function; -1: nothing.
        last_use = [-1] * compiled.slots
        last_calls: dict[FixedOperands, int] = {}
        for place, step in enumerate(compiled.steps):
            for slot in step.operands:
                last_use[slot] = place
            if step.fixed is not None:
                last_calls[step.fixed] = place
        for fixed, place in last_calls.items():
            for slot in fixed.slots:
                last_use[slot] = max(last_use[slot], place)
        for slot in compiled.returns:
            last_use[slot] = len(compiled.steps)
        compiled.unused = tuple(i for i in range(compiled.arguments) if last_use[i] < 0)
        for place, step in enumerate(compiled.steps):
            if updated:
                step.in_place = tuple(
                    (allocation, argument)
                    for allocation in step.results
                    if (argument := updated.get(allocation.slot)) is not None
                    and last_use[argument] <= place
                )
            used = step.operands
            if step.fixed is not None and last_calls[step.fixed] == place:
                used += step.fixed.slots
            dying = [s for s in used if last_use[s] == place]
            step.dying = tuple(dict.fromkeys(dying)) if len(dying) > 1 else tuple(dying)
            step.unused = tuple([s for s in step.defined if last_use[s] < 0])
        pace(compiled.steps)
        return compiled


class Compiler:
    """
    Compiles functions, each once: `functions` are those of the module by name, `device_map` says
    where values live.

    A result of the entry function that updates an argument (`dist.updates`) is computed
    into the argument's memory by the op that computes it, if that op is no call and the
    last one to use the argument: optimizers work in place.
    """

    def __init__(self, functions: Mapping[str, FuncOp], device_map: DeviceMap):
        self.functions = functions
        self.device_map = device_map
        self._compiled: dict[str, CompiledFunction] = {}
        self._open: list[str] = []
        # By the ids of types, which so stay.
        self._places: dict[int, tuple[Attribute, Positions, Bytes]] = {}
        self._known_transfers: dict[
            object, tuple[Sequence[Attribute], tuple[Transfer, ...] | None]
        ] = {}
        self._computations = Computations(device_map)

    def of(self, functions: Mapping[str, FuncOp]) -> Compiler:
        """
        A compiler of other functions, which knows what this one does of ops and types; they
        have to stay.
        """
        found = copy(self)
        found.functions, found._compiled, found._open = functions, {}, []
        return found

    def compile(self, function: FuncOp) -> CompiledFunction:
        """Compiles a function and those that it calls, each once. Raises DistIRError."""
        name = function.sym_name.data
        if name in self._open:
            cycle = " -> ".join(f"@{n}" for n in (*self._open, name))
            raise DistIRError(f"functions call each other in a cycle: {cycle}")
        if name not in self._compiled:
            self._open.append(name)
            self._compiled[name] = self._compile(function)
            self._open.pop()
        return self._compiled[name]

    def take(self, function: FuncOp, compiled: CompiledFunction) -> None:
        """Says what a function is compiled to."""
        self._compiled[function.sym_name.data] = compiled

    @property
    def compiled_functions(self) -> list[CompiledFunction]:
        """Every function compiled so far."""
        return list(self._compiled.values())

    def _compile(self, function: FuncOp) -> CompiledFunction:
        block = _body(function)
        build = CompiledFunctionBuilder(function.sym_name.data, len(block.args))
        build.bind(block.args, 0)
        end = return_op(function)
        for op in block.ops:
            if op is not end:
                self.add(op, build)
        returns, args = build.slots(end.operands), block.args
        updated = {
            returns[i]: a
            for i, a in updated_arguments(function).items()
            if end.operands[i].type == args[a].type
        }
        compiled = build.finish(returns, updated)
        compiled.mesh = self._only_mesh(block, compiled)
        return compiled

    def add(self, op: Operation, build: CompiledFunctionBuilder) -> CompiledOp:
        """Makes an op the next step of a function. Raises DistIRError."""
        operands = build.slots(op.operands)
        first = build.define(len(op.results))
        build.bind(op.results, first)
        step = self.step(op, operands, first)
        build.add(step)
        return step

    def _only_mesh(self, block: Block, compiled: CompiledFunction) -> int | None:
        """The position that a function happens on, if there is one for each mesh."""
        if not isinstance(self.device_map, UniformDeviceMap):
            return None
        values = [*block.args, *(r for op in block.ops for r in op.results)]
        names = self.device_map.mesh_names(values)
        if len(names) != 1 or any(
            step.callee is not None and step.callee.mesh is None
            for step in compiled.steps
        ):
            return None
        return self.device_map.index[names[0]]

    def allocation(self, type_: Attribute, slot: int, op: Operation) -> Allocation:
        """
        The memory of a value of that type in that slot: its devices, and the bytes on
        each; `op` is named in errors. Raises DistIRError for a shape that is not known.
        """
        known = self._places.get(id(type_))
        if known is None:
            device_map, layout = self.device_map, layout_of(type_)
            mesh = layout.mesh if layout else None
            size = device_map.allocated(device_map.bytes_of_type(type_, op), mesh)
            known = self._places[id(type_)] = type_, device_map.positions(mesh), size
        return Allocation(slot, known[1], known[2])

    def step(self, op: Operation, operands: tuple[int, ...], first: int) -> CompiledOp:
        """
        The step for an op: `operands` are the slots of its operands, `first` that of its first
        result. Raises DistIRError for ops that cannot be simulated.
        """
        defined = range(first, first + len(op.results))
        if isinstance(op, CallOp):
            callee = self.functions.get(op.callee.string_value())
            if callee is None:
                raise DistIRError(
                    f"{describe(op)} calls {op.callee}, which is not there"
                )
            inner = self.compile(callee)
            return CompiledOp(
                op, operands, NOWHERE, defined, callee=inner, mesh=inner.mesh
            )
        results = tuple(
            [
                self.allocation(r.type, slot, op)
                for r, slot in zip(op.results, defined, strict=True)
            ]
        )
        _refuse_other_forms(op)
        transfers = self._transfers(op)
        if transfers is not None:
            is_collective = isinstance(op, collective.CollectiveOp)
            size = buffer_bytes(op, self.device_map) if is_collective else 0
            return CompiledOp(
                op,
                operands,
                results[0].positions if size else NOWHERE,
                defined,
                transfers=transfers,
                workspace=size,
                is_asynchronous=ASYNCHRONOUS in op.attributes,
                is_collective=is_collective,
                # An all-reduce works on a copy, its result.
                holds_operand=is_collective
                and not isinstance(op, collective.AllReduceOp),
                issue=max((t.issue for t in transfers), default=0.0),
                results=results,
            )
        return self._compute(op, operands, defined, results)

    def _transfers(self, op: Operation) -> tuple[Transfer, ...] | None:
        """
        `transfers_of`, the same for all ops that bring values of one type to another alike;
        a profile looks at what is around a collective too.
        """
        axes: tuple[str, ...] = ()
        if isinstance(op, collective.CollectiveOp):
            axes = op.axis_names
            if op.is_joined or _begins_bucket(op):
                return transfers_of(op, self.device_map)
        if (
            not (axes or isinstance(op, SendOp))
            or self.device_map.hardware.has_profiles
        ):
            return transfers_of(op, self.device_map)
        # By the ids of the types, which so stay.
        types = op.operands[0].type, op.results[0].type
        key = (type(op), axes, *map(id, types))
        if key not in self._known_transfers:
            self._known_transfers[key] = types, transfers_of(op, self.device_map)
        return self._known_transfers[key][1]

    def _compute(
        self,
        op: Operation,
        operands: tuple[int, ...],
        defined: range,
        results: tuple[Allocation, ...],
    ) -> CompiledOp:
        name = self._computations.mesh_name(op)
        found = self._computations.of(op, name)
        return CompiledOp(
            op,
            operands,
            self.device_map.positions(name),
            defined,
            found.seconds,
            found.flops,
            found.seconds_at_peak,
            found.issue,
            found.workspace,
            results=results,
            view_of=operands[0] if found.is_view else None,
            is_constant=not op.operands and op.name == "onnx.Constant",
        )


def _begins_bucket(op: collective.CollectiveOp) -> bool:
    after = op.next_op
    return isinstance(after, collective.CollectiveOp) and after.is_joined


def _body(function: FuncOp) -> Block:
    if function.is_declaration:
        raise DistIRError(
            f"function @{function.sym_name.data} has no body and cannot be simulated"
        )
    return function.body.block


def _refuse_other_forms(op: Operation) -> None:
    if isinstance(op, ReshardOp):
        raise DistIRError(
            f"{describe(op)} says nothing about how the layout changes; run "
            f"lower-reshard before simulating"
        )
    if collective.is_per_rank(op):
        raise DistIRError(
            f"{describe(op)} belongs to one rank's program; simulate the distributed "
            f"program that it was projected from"
        )
