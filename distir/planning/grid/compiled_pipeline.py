"""
A pipeline that is compiled for the simulator directly, without the program that it would
become.

`pipeline` calls the function of a stage for every micro-batch, and such calls are most of
its work and of the simulator's. Here a function is built, compiled and summarised once for
all stages that do the same, and each call of it becomes a step of the simulator at once.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from xdsl.dialects.builtin import FunctionType, SymbolRefAttr, UnitAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects.dist import ReshardOp, SendOp
from distir.dialects.dist_attributes import ASYNCHRONOUS
from distir.interpreters.simulator.engine.compiled import (
    CallStep,
    CompiledFunction,
    CompiledStep,
    FixedOperands,
    PlacedFunction,
)
from distir.interpreters.simulator.engine.compiler import CompiledFunctionBuilder
from distir.interpreters.simulator.engine.machine import Machine
from distir.interpreters.simulator.engine.reserved import Reserved
from distir.interpreters.simulator.engine.run import execute
from distir.interpreters.simulator.engine.uniform import UniformMachine
from distir.interpreters.simulator.fusion import REACH
from distir.pipelining import (
    Action,
    PipelineSchedule,
    ScheduleOptions,
    check_schedule,
    global_steps,
)
from distir.planning.grid.shared_stages import Compilation, SharedStages
from distir.planning.layouts.fitted_plan import Step
from distir.program import batch_size, updated_arguments
from distir.transforms.pipelines.division import DividedProgram
from distir.transforms.pipelines.functions import Make, StageFunction, StageOps
from distir.transforms.pipelines.over_time import monoid_over_time
from distir.transforms.pipelines.pipeline import check_fits


@dataclass
class _CompiledSite:
    """
    A use of a function by a stage: the function and the mesh, with one op that stands
    for all the calls. Operands that are the same in all micro-batches are `fixed` if
    they are arguments of the program; others stand in `common`, where None marks those
    that depend on the micro-batch.
    """

    op: CallOp
    callee: CompiledFunction
    mesh: int
    fixed: FixedOperands | None = None
    common: Sequence[int | None] = ()


@dataclass
class _Outside:
    """
    A call or a send in the entry function: the op that stands for it and all its like, the
    slots of its results, and those of its operands that ops of the block compute. `op` is
    what the block has of it; if that is nothing, its place there would be before `anchor`.
    """

    like: Operation
    defined: range
    used: tuple[int, ...] = ()
    op: Operation | None = None
    anchor: _Outside | None = None


@dataclass
class _Item:
    """
    An op of the entry function, with the slots of its operands and results, and its step,
    if that does not depend on the ops around it.
    """

    op: Operation
    operands: Sequence[int]
    defined: range
    step: CompiledStep | None = None


class CompiledEntry:
    """
    The `Entry` of a divided program, compiled for the simulator; its values are the slots of
    a compiled function.

    A call or a send becomes a step at once, from one that is made for all its like. All
    other ops are in a block, so that each finds the ops around it when it becomes a step in
    the end: what it costs may depend on them (`distir.interpreters.simulator.fusion`). That
    block has those calls and sends alone that are near such an op, use its results or
    compute its operands.
    """

    def __init__(self, division: DividedProgram, compilation: Compilation):
        self.compilation = compilation
        self._division = division
        self._builder = CompiledFunctionBuilder(compilation.fold.entry, 0)
        self._types: list[Attribute] = []
        """The types of the values by slot."""
        self._block = Block()
        self._values: dict[int, SSAValue] = {}
        """The values of the block by slot, and the slots by value."""
        self._slots: dict[SSAValue, int] = {}
        self._computed: set[int] = set()
        """The slots of results of ops that are neither calls nor sends."""
        self._outside: list[_Outside] = []
        """The calls and sends so far; the block knows those before `_placed_before`."""
        self._placed_before = 0
        self._items: list[_Item] = []
        self._sites: dict[StageFunction, _CompiledSite] = {}
        # By the types before and after.
        self._sends: dict[tuple[int, int], CompiledStep] = {}

    def arguments(self, types: Sequence[Attribute]) -> Sequence[int]:
        """See `Entry`."""
        self._types = [*types]
        self._builder = CompiledFunctionBuilder(self.compilation.fold.entry, len(types))
        self._block = Block(arg_types=types)
        for slot, value in enumerate(self._block.args):
            self._bind(slot, value)
        return range(len(types))

    def type_of(self, value: int) -> Attribute:
        """See `Entry`."""
        return self._types[value]

    def name(self, value: int, hint: str | None) -> None:
        """See `Entry`: the names are not used."""

    def op(self, make: Make, operands: Sequence[int]) -> Sequence[int]:
        """See `Entry`."""
        self._place_outside()
        made = make([self._value(slot) for slot in operands])
        results: Sequence[SSAValue] = made[-1].results
        for op in made:
            if not isinstance(op, ReshardOp):
                self._add(op)
                continue
            ops = self.compilation.shared.lowering.ops(op)
            for each in ops:
                self._add(each)
            value = ops[-1].results[0] if ops else op.source
            op.result.replace_all_uses_with(value)
            if op is made[-1]:
                results = [value]
            op.erase()
        return [self._slots[value] for value in results]

    def _add(self, op: Operation) -> None:
        """Adds an op of the block as the next one."""
        self._block.add_op(op)
        operands = tuple([self._slots[value] for value in op.operands])
        defined = self._define([result.type for result in op.results])
        for slot, value in zip(defined, op.results, strict=True):
            self._bind(slot, value)
        self._computed.update(defined)
        self._items.append(_Item(op, operands, defined))

    def _define(self, types: Sequence[Attribute]) -> range:
        """Reserves new slots for values of these types."""
        self._types += types
        first = self._builder.define(len(types))
        return range(first, first + len(types))

    def _bind(self, slot: int, value: SSAValue) -> None:
        self._values[slot], self._slots[value] = value, slot

    def _value(self, slot: int) -> SSAValue:
        """Returns the value in a slot."""
        if slot not in self._values:
            place = bisect(self._outside, slot, key=lambda o: o.defined.start) - 1
            outside = self._outside[place]
            types = [self._types[i] for i in outside.defined]
            new = self._op_outside(outside, types)
            if outside.op is not None:
                Rewriter.replace_op(outside.op, new, [])
            else:
                anchor = outside.anchor
                assert anchor is not None and anchor.op is not None
                self._block.insert_op_before(new, anchor.op)
            outside.op = new
            for i, value in zip(outside.defined, new.results, strict=True):
                self._bind(i, value)
        return self._values[slot]

    def _place_outside(self) -> None:
        """
        Adds to the block what the ops that follow in it, or the values that it has, may
        find of the latest calls and sends.
        """
        latest = self._outside[self._placed_before :]
        self._placed_before += len(latest)
        far = latest[:-REACH]
        near = [*(o for o in far if o.used), *latest[-REACH:]]
        for outside in near:
            outside.op = self._op_outside(outside, ())
            self._block.add_op(outside.op)
        for outside in far:
            outside.anchor = near[0]

    def _op_outside(self, outside: _Outside, types: Sequence[Attribute]) -> Operation:
        """Returns an op of the block for a call or a send, with results of these types."""
        return outside.like.create(
            operands=[self._values[slot] for slot in outside.used],
            result_types=types,
            properties=outside.like.properties,
        )

    def send(self, value: int, type_: Attribute, *, asynchronous: bool) -> int:
        """See `Entry`."""
        defined = self._define([type_])
        key = id(self._types[value]), id(type_)
        like = self._sends.get(key)
        if like is None:
            (source,) = Block(arg_types=[self._types[value]]).args
            op = SendOp.create(
                operands=[source],
                result_types=[type_],
                attributes={ASYNCHRONOUS: UnitAttr()} if asynchronous else {},
            )
            like = self.compilation.compiler.step(op, (value,), defined.start)
            self._sends[key] = like
        by = defined.start - like.defined.start
        step = like.moved({like.operands[0]: value}, by)
        used = (value,) if value in self._values else ()
        self._outside.append(_Outside(step.op, defined, used))
        self._items.append(_Item(step.op, step.operands, defined, step))
        return defined.start

    def stage_function(
        self, group: StageOps, mesh: str, added: tuple[SSAValue, ...]
    ) -> StageFunction:
        """See `Entry`. The function may be that of another stage, on another mesh."""
        common, content = self.compilation, self._division.group_contents.of(group)
        sums = [(group.accumulated.index(v), monoid_over_time(v)) for v in added]
        does = *map(common.contents.of, content.ops), content.wiring, tuple(sums)
        functions = common.shared.functions
        for where in (common.fold.stages[0].name, mesh):
            if (does, where) not in functions:
                functions[does, where] = common.stage(group, where, added)
            found = functions[does, where]
            if common.device_map.alike(where, mesh, found.axes):
                break
        symbol = SymbolRefAttr(group.name)
        function = StageFunction(symbol, content.inputs, added, found.numbered)
        op = CallOp.create(properties={"callee": symbol})
        place = common.device_map.index[mesh]
        self._sites[function] = _CompiledSite(op, found.compiled, place)
        return function

    def call(
        self,
        function: StageFunction,
        common: Sequence[int | None],
        own: Sequence[int],
        returned: Sequence[SSAValue],
        types: Sequence[Attribute],
    ) -> Sequence[int]:
        """See `Entry`."""
        site = self._sites[function]
        used = self._computed.intersection(own)
        if site.fixed is None:
            site.fixed, site.common = self._fixed(common)
            used.update(self._computed.intersection(common))
        operands = tuple(own)
        if site.common:
            left = iter(own)
            inputs = [next(left) if slot is None else slot for slot in site.common]
            operands = (*inputs, *left)
        defined = self._define(types)
        step = CallStep(
            op=site.op,
            operands=operands,
            defined=defined,
            callee=site.callee,
            mesh=site.mesh,
            fixed=site.fixed,
        )
        self._outside.append(_Outside(site.op, defined, tuple(used)))
        self._items.append(_Item(site.op, operands, defined, step))
        return defined

    def _fixed(
        self, common: Sequence[int | None]
    ) -> tuple[FixedOperands, Sequence[int | None]]:
        """
        Divides the operands that a call has in all micro-batches (slots; None where they
        differ) into those that are arguments of the program, and the others.
        """
        count = len(self._block.args)
        fixed = {
            place: slot
            for place, slot in enumerate(common)
            if slot is not None and slot < count
        }
        others = [slot for place, slot in enumerate(common) if place not in fixed]
        if all(slot is None for slot in others):
            others.clear()
        return FixedOperands(tuple(fixed.values()), tuple(fixed)), others

    def run(self, results: Sequence[int]) -> Machine:
        """
        Executes the program, which returns these values, and returns the simulated machine.
        """
        function, common = self._division.structure.function, self.compilation
        self._place_outside()
        self._block.add_op(ReturnOp(*map(self._value, results)))
        types = [a.type for a in self._block.args], [self._types[s] for s in results]
        # The ops find there how the program is compiled into kernels.
        around = FuncOp(
            common.fold.entry, FunctionType.from_lists(*types), Region(self._block)
        )
        around.attributes.update(function.attributes)
        common.kept.append(around)
        for item in self._in_order():
            self._compile(item)
        updated = {
            results[i]: a
            for i, a in updated_arguments(function).items()
            if self._types[results[i]] == self._types[a]
        }
        compiled = self._builder.finish(results, updated)
        arguments = [
            common.compiler.allocation(type_, slot, function)
            for slot, type_ in enumerate(self._types[: compiled.arguments])
        ]
        positions = len(common.device_map.index)
        machine = UniformMachine(positions, common.shared.summaries)
        placed = self._placed(compiled)
        reserved = Reserved.of(common.device_map, placed, positions)
        return execute(
            machine, compiled, arguments, placed, common.device_map, reserved
        )

    def _in_order(self) -> list[_Item]:
        """Returns the ops in order, after forming the buckets of collectives."""
        items, bucketer = self._items, self.compilation.shared.bucketer
        if bucketer is None:
            return items
        found = bucketer.form(
            [item.op for item in items],
            [item.operands for item in items],
            [item.defined for item in items],
        )
        order: list[Sequence[_Item]] = [[item] for item in items]
        for bucket in found:
            members = [items[i] for i in bucket.members]
            for i in bucket.members:
                order[i] = ()
            order[bucket.place] = members
        return [item for group in order for item in group]

    def _compile(self, item: _Item) -> None:
        """Appends the step of an op, and that of what it communicates meanwhile."""
        common, first = self.compilation, item.defined.start
        if item.step is None:
            common.prepare(item.op)
            exchange = common.compiler.exchange(item.op, first)
            if exchange is not None:
                self._builder.add(exchange)
            item.step = common.compiler.step(item.op, tuple(item.operands), first)
        self._builder.add(item.step)

    def _placed(self, compiled: CompiledFunction) -> list[PlacedFunction]:
        """
        Returns the functions of the program that this stands for: each stage has its own,
        and the functions that these call are the same for all stages on a mesh.
        """
        names = [mesh.name for mesh in self.compilation.fold.stages]
        placed: dict[object, PlacedFunction] = {}
        calls = [
            (s.op, s.callee, s.mesh) for s in compiled.steps if isinstance(s, CallStep)
        ]
        stages = {site.op for site in self._sites.values()}
        for op, callee, place in dict.fromkeys(calls):
            assert place is not None  # all of a folded function is on one mesh
            mesh = names[place]
            called = [*self.compilation.called(callee)]
            if op in stages:
                placed[op] = PlacedFunction(callee, mesh)
            else:
                called.append((self.compilation.shared.callee_numbers[callee], callee))
            for number, inner in called:
                placed.setdefault((number, mesh), PlacedFunction(inner, mesh))
        return [PlacedFunction(compiled), *placed.values()]


class PipelineSimulator:
    """
    Simulates the pipelines of a divided program, with any number of micro-batches. Raises
    NotUniform where devices of one mesh differ.
    """

    def __init__(self, division: DividedProgram, shared: SharedStages):
        self.division = division
        self._shared = shared
        self._compilations: dict[int, Compilation] = {}
        """The compilations by number of micro-batches."""

    def step(self, division: DividedProgram, options: ScheduleOptions) -> Step:
        """
        Returns the time and memory of a step of a pipeline, equal to what `simulate` finds
        for the program that `distribute` makes. `division` is the simulator's own, or the
        same with another number of micro-batches. Raises DistIRError and NotUniform.
        """
        structure, device_map = division.structure, self._shared.device_map
        trains = bool(structure.backward)
        schedule, steps = planned(options, structure.micro_batches, trains)
        check_fits(schedule, options.p, structure)
        count = structure.micro_batches
        if count not in self._compilations:
            fold = division.fold(division.meshes(schedule.ranks))
            before = next(iter(self._compilations.values()), None)
            self._compilations[count] = Compilation(
                structure, fold, self._shared, before
            )
        compilation = self._compilations[count]
        fold = compilation.fold
        entry = CompiledEntry(division, compilation)
        sends = not options.blocking_sends
        results = division.emit(schedule, steps, fold, entry, asynchronous=sends)
        machine = entry.run(results)
        seconds, batch = machine.end, batch_size(structure.function) or 0
        samples = batch / seconds if seconds else 0.0
        kinds = [device_map.hardware.kinds[mesh.devices[0]] for mesh in fold.stages]
        devices = [
            (peak, kind.memory, kind.reserved(peak, held))
            for kind, peak, held in zip(
                kinds, machine.peak.tolist(), machine.held.tolist(), strict=True
            )
        ]
        return Step.on(seconds, samples, devices)


@lru_cache(maxsize=128)
def planned(
    options: ScheduleOptions, micro_batches: int, trains: bool
) -> tuple[PipelineSchedule, list[list[Action]]]:
    """
    Returns a schedule and its order of actions, which many programs share. Raises
    DistIRError.
    """
    schedule = options.schedule_of(micro_batches, trains)
    check_schedule(schedule)
    return schedule, global_steps(schedule)
