"""
A function compiled for simulation: what each op occupies, for how long, and what it does
to memory, worked out once however often the function is called.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from distir.dialects import collective
from distir.dialects.dist import (
    ASYNCHRONOUS,
    ReshardOp,
    SendOp,
    layout_of,
)
from distir.errors import DistIRError
from distir.interpreters.cost.computations import Computations, Seconds
from distir.interpreters.cost.pacing import pace
from distir.interpreters.cost.placement import (
    Bytes,
    Placement,
    Positions,
    UniformPlacement,
)
from distir.interpreters.cost.transfers import Transfer, transfers_of
from distir.program import describe, functions, return_op, updated_arguments


class Allocation(NamedTuple):
    """A result: its slot, where it lives, the memory it takes on each of these devices."""

    slot: int
    positions: Positions
    size: Bytes


@dataclass(eq=False)
class Step:
    """
    One op. Either it computes `flops` on each of `positions` for `seconds` (a number, or
    one per device; the `flops` alone would take `seconds_at_peak`), or it communicates by
    `transfers` (while its devices compute, if it `is_asynchronous`; `holds_operand`: its
    operand's memory is needed until it is done), as a collective or a send, or it calls
    `callee`. The host takes `issue` seconds to issue it.

    Slots number the values of the function. `view_of` is the slot whose memory the
    (only) result shares; `in_place` has pairs of a result's slot and of the argument's
    whose memory the result may take over. `dying` are the slots used here for the last time, `unused` the
    results that nothing uses.
    """

    op: Operation
    operands: tuple[int, ...]
    positions: Positions
    seconds: Seconds = 0.0
    flops: float = 0.0
    seconds_at_peak: Seconds = 0.0
    issue: float = 0.0
    workspace: Bytes = 0
    transfers: tuple[Transfer, ...] = ()
    is_asynchronous: bool = False
    is_collective: bool = False
    holds_operand: bool = False
    callee: Plan | None = None
    results: tuple[Allocation, ...] = ()
    view_of: int | None = None
    in_place: tuple[tuple[Allocation, int], ...] = ()
    is_constant: bool = False
    dying: tuple[int, ...] = ()


@dataclass(eq=False)
class Plan:
    """
    A function: its steps, the number of its slots (arguments come first), arguments that
    nothing uses, and the slots that it returns. `mesh` is the one position that all of it
    happens on, one step after the other; None where there are several, or sends.
    """

    name: str
    arguments: int
    slots: int = 0
    unused: tuple[int, ...] = ()
    returns: tuple[int, ...] = ()
    steps: list[Step] = field(default_factory=list[Step])
    mesh: int | None = None


class Planner:
    """
    Compiles the functions of a module, each once.

    A result of the entry function that updates an argument (`dist.updates`) is computed
    into the argument's memory by the op that computes it, if that op is no call and the
    last one to use the argument: optimizers work in place.
    """

    def __init__(self, module: ModuleOp, placement: Placement):
        self.functions = functions(module)
        self.placement = placement
        self._plans: dict[str, Plan] = {}
        self._open: list[str] = []
        # By the ids of types, which the module keeps.
        self._places: dict[int, tuple[Positions, Bytes]] = {}
        self._known_transfers: dict[object, tuple[Transfer, ...] | None] = {}
        self._computations = Computations(placement)

    def plan(self, function: FuncOp) -> Plan:
        """The plan of a function and of those that it calls. Raises DistIRError."""
        name = function.sym_name.data
        if name in self._open:
            cycle = " -> ".join(f"@{n}" for n in (*self._open, name))
            raise DistIRError(f"functions call each other in a cycle: {cycle}")
        if name not in self._plans:
            self._open.append(name)
            self._plans[name] = self._compile(function)
            self._open.pop()
        return self._plans[name]

    @property
    def plans(self) -> list[Plan]:
        """Every function compiled so far."""
        return list(self._plans.values())

    def _compile(self, function: FuncOp) -> Plan:
        block = _body(function)
        # Slots by the id of a value: a function may have hundreds of thousands of operands.
        slots = {id(arg): i for i, arg in enumerate(block.args)}
        # Per slot the op that uses it last, by its place in the function; -1: nothing.
        last_use = [-1] * len(slots)
        operands: list[tuple[int, ...]] = []
        for place, op in enumerate(block.ops):
            used = tuple([slots[id(v)] for v in op.operands])
            operands.append(used)
            for slot in used:
                last_use[slot] = place
            for result in op.results:
                slots[id(result)] = len(slots)
                last_use.append(-1)
        plan = Plan(function.sym_name.data, len(block.args), len(slots))
        plan.unused = tuple(i for i in range(len(block.args)) if last_use[i] < 0)
        end = return_op(function)
        plan.returns = operands[-1]
        updated = {
            id(end.operands[i]): block.args[a]
            for i, a in updated_arguments(function).items()
        }
        for place, op in enumerate(block.ops):
            if isinstance(op, ReturnOp):
                continue
            results = tuple([self.allocation(r, slots[id(r)], op) for r in op.results])
            step = self._step(op, operands[place], results)
            if updated:
                step.in_place = tuple(
                    (allocation, slots[id(argument)])
                    for result, allocation in zip(op.results, results, strict=True)
                    if (argument := updated.get(id(result))) is not None
                    and last_use[slots[id(argument)]] <= place
                    and argument.type == result.type
                )
            dying = dict.fromkeys(s for s in step.operands if last_use[s] == place)
            unused = (r.slot for r in results if last_use[r.slot] < 0)
            step.dying = (*dying, *unused)
            plan.steps.append(step)
        pace(plan.steps)
        plan.mesh = self._only_mesh(block, plan)
        return plan

    def _only_mesh(self, block: Block, plan: Plan) -> int | None:
        """The position that a function happens on, if there is one for each mesh."""
        if not isinstance(self.placement, UniformPlacement):
            return None
        values = [*block.args, *(r for op in block.ops for r in op.results)]
        names = self.placement.mesh_names(values)
        if len(names) != 1 or any(
            step.callee is not None and step.callee.mesh is None for step in plan.steps
        ):
            return None
        return self.placement.index[names[0]]

    def allocation(self, value: SSAValue, slot: int, op: Operation) -> Allocation:
        """Where a value lives and how much memory it takes."""
        key = id(value.type)
        if key not in self._places:
            placement, layout = self.placement, layout_of(value)
            mesh = layout.mesh if layout else None
            size = placement.allocated(placement.bytes_of(value, op), mesh)
            self._places[key] = placement.positions(mesh), size
        return Allocation(slot, *self._places[key])

    def _step(
        self, op: Operation, operands: tuple[int, ...], results: tuple[Allocation, ...]
    ) -> Step:
        if isinstance(op, CallOp):
            callee = self.functions.get(op.callee.string_value())
            if callee is None:
                raise DistIRError(
                    f"{describe(op)} calls {op.callee}, which is not there"
                )
            inner = self.plan(callee)
            return Step(op, operands, slice(0, 0), callee=inner, results=results)
        _refuse_other_forms(op)
        transfers = self._transfers(op)
        if transfers is not None:
            is_collective = isinstance(op, collective.CollectiveOp)
            return Step(
                op,
                operands,
                slice(0, 0),
                transfers=transfers,
                is_asynchronous=ASYNCHRONOUS in op.attributes,
                is_collective=is_collective,
                # An all-reduce works on a copy, its result.
                holds_operand=is_collective
                and not isinstance(op, collective.AllReduceOp),
                issue=max((t.issue for t in transfers), default=0.0),
                results=results,
            )
        return self._compute(op, operands, results)

    def _transfers(self, op: Operation) -> tuple[Transfer, ...] | None:
        """
        `transfers_of`, the same for all ops that bring values of one type to another alike;
        a profile looks at what is around a collective too.
        """
        axes: tuple[str, ...] = ()
        if isinstance(op, collective.CollectiveOp):
            axes = op.axis_names
        if not (axes or isinstance(op, SendOp)) or self.placement.hardware.has_profiles:
            return transfers_of(op, self.placement)
        types = id(op.operands[0].type), id(op.results[0].type)
        key = (type(op), axes, *types)
        if key not in self._known_transfers:
            self._known_transfers[key] = transfers_of(op, self.placement)
        return self._known_transfers[key]

    def _compute(
        self, op: Operation, operands: tuple[int, ...], results: tuple[Allocation, ...]
    ) -> Step:
        name = self._computations.mesh_name(op)
        found = self._computations.of(op, name)
        return Step(
            op,
            operands,
            self.placement.positions(name),
            found.seconds,
            found.flops,
            found.seconds_at_peak,
            found.issue,
            found.workspace,
            results=results,
            view_of=operands[0] if found.is_view else None,
            is_constant=not op.operands and op.name == "onnx.Constant",
        )


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
