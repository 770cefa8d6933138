"""
Compiles a pipeline for the simulator directly, without building its program.

The program of a pipeline calls the function of a stage for every micro-batch. These
calls are most of the work of building and simulating it. Here a function is built,
compiled and summarised once for all equal stages, and each call directly becomes a step
of the simulator.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
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
from distir.interpreters.simulator.engine.pytorch import gradient_buckets
from distir.interpreters.simulator.engine.reserved import Reserved
from distir.interpreters.simulator.engine.run import execute
from distir.interpreters.simulator.engine.uniform import UniformMachine
from distir.interpreters.simulator.fusion import REACH
from distir.pipelining import (
    Action,
    PipelineSchedule,
    ScheduleOptions,
    global_steps,
)
from distir.planning.grid.entry_items import CompiledSite, EntryItem, paired_items
from distir.planning.grid.shared_stages import Compilation, SharedStages
from distir.planning.layouts.fitted_plan import Step
from distir.program import batch_size, updated_arguments
from distir.transforms.pipelines.division import DividedProgram
from distir.transforms.pipelines.functions import Make, StageFunction, StageOps
from distir.transforms.pipelines.over_time import reduction_over_time
from distir.transforms.pipelines.pipeline import check_fits


@dataclass
class _Outside:
    """
    A call or a send in the entry function. The block holds the ops that are neither
    calls nor sends. A slot is the number of a value.

    - `like`: an op that stands for this call or send and for all equal ones;
    - `defined`: the slots of the results of the call or send;
    - `used`: the slots of the operands that ops of the block compute;
    - `op`: the op that stands for the call or send in the block; None if there is none;
    - `anchor`: if `op` is None, the call or send before which `op` would be in the
      block.
    """

    like: Operation
    defined: range
    used: tuple[int, ...] = ()
    op: Operation | None = None
    anchor: _Outside | None = None


class CompiledEntry:
    """
    The entry function of a divided program, compiled for the simulator. It implements
    `Entry`; a value is represented by its slot, the number of a value in a compiled
    function.

    A call or a send directly becomes a step; equal calls or sends share one step. All
    other ops are collected in a block and become steps at the end, because the cost of
    an op may depend on the ops around it (`distir.interpreters.simulator.fusion`). The
    block also has the calls and sends that are near such an op, use its results or
    compute its operands.
    """

    def __init__(self, division: DividedProgram, compilation: Compilation):
        self.compilation = compilation
        self._division = division
        self._builder = CompiledFunctionBuilder(compilation.fold.entry, 0)
        self._types: list[Attribute] = []
        """The type of each value, by slot."""
        self._block = Block()
        self._values: dict[int, SSAValue] = {}
        """The values of the block by slot. `_slots` holds the slots by value."""
        self._slots: dict[SSAValue, int] = {}
        self._computed: set[int] = set()
        """The slots of results of ops that are neither calls nor sends."""
        self._outside: list[_Outside] = []
        """
        All calls and sends so far. Those before index `_placed_before` are known to the
        block.
        """
        self._placed_before = 0
        self._items: list[EntryItem] = []
        self._forward = frozenset(division.structure.forward)
        self._sites: dict[StageFunction, CompiledSite] = {}
        self._joined: list[CompiledSite] = []
        # By the types before and after.
        self._sends: dict[tuple[int, int], CompiledStep] = {}

    def arguments(self, types: Sequence[Attribute]) -> Sequence[int]:
        """
        Adds the arguments of the entry function, of types `types`, and returns their
        slots, the numbers of the values.
        """
        self._types = [*types]
        self._builder = CompiledFunctionBuilder(self.compilation.fold.entry, len(types))
        self._block = Block(arg_types=types)
        for slot, value in enumerate(self._block.args):
            self._bind(slot, value)
        return range(len(types))

    def type_of(self, value: int) -> Attribute:
        """Returns the type of the value in slot `value`."""
        return self._types[value]

    def name(self, value: int, hint: str | None) -> None:
        """Does nothing: the simulator needs no names of values."""

    def op(self, make: Make, operands: Sequence[int]) -> Sequence[int]:
        """
        Adds the ops that `make` makes from the values with the numbers `operands`
        (slots). Reshards are lowered to collectives. Returns the slots of the results
        of the last op.
        """
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
        """
        Adds an op after the ops collected so far, and reserves slots (numbers of
        values) for its results.
        """
        self._block.add_op(op)
        operands = tuple([self._slots[value] for value in op.operands])
        defined = self._define([result.type for result in op.results])
        for slot, value in zip(defined, op.results, strict=True):
            self._bind(slot, value)
        self._computed.update(defined)
        self._items.append(EntryItem(op, operands, defined))

    def _define(self, types: Sequence[Attribute]) -> range:
        """
        Reserves new slots, numbers of values, for values of `types`, and returns them.
        """
        self._types += types
        first = self._builder.define(len(types))
        return range(first, first + len(types))

    def _bind(self, slot: int, value: SSAValue) -> None:
        self._values[slot], self._slots[value] = value, slot

    def _value(self, slot: int) -> SSAValue:
        """
        Returns the value with the number `slot`. If a call or send defines it, first
        adds an op for this call or send to the ops that are compiled later.
        """
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
        Adds the latest calls and sends to the block of ops that are compiled later, so
        that the ops of the block have them among their neighbours. Only calls and sends
        are added that are near the end or use results of ops of the block.
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
        """
        Returns an op that stands for a call or a send among the ops that are compiled
        later. Its results have the types `types`.
        """
        return outside.like.create(
            operands=[self._values[slot] for slot in outside.used],
            result_types=types,
            properties=outside.like.properties,
        )

    def send(self, value: int, type_: Attribute, *, asynchronous: bool) -> int:
        """
        Adds a send of the value with the number `value` (its slot) to another mesh,
        where its type is `type_`. Returns the slot of the received value.
        """
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
        self._items.append(EntryItem(step.op, step.operands, defined, step))
        return defined.start

    def stage_function(
        self, group: StageOps, mesh: str, added: tuple[SSAValue, ...]
    ) -> StageFunction:
        """
        Returns the function of the ops in `group` on mesh `mesh`. The function adds its
        terms to the running sums `added`. If another stage has an equal function that
        costs the same on its mesh, the compiled code of that function is used again.
        """
        common, content = self.compilation, self._division.group_contents.of(group)
        sums = [(group.accumulated.index(v), reduction_over_time(v)) for v in added]
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
        is_forward = group.ops[0] in self._forward
        self._sites[function] = CompiledSite(op, found.compiled, place, is_forward)
        return function

    def call(
        self,
        function: StageFunction,
        common: Sequence[int | None],
        own: Sequence[int],
        returned: Sequence[SSAValue],
        types: Sequence[Attribute],
    ) -> Sequence[int]:
        """
        Adds a call of `function` and returns the slots (numbers) of its results, whose
        types are `types`. `common` has an entry for each operand: the slot of an
        operand that is the same for all micro-batches, or None. The slots in `own`
        replace the Nones, in order; the remaining slots in `own` follow at the end.
        """
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
        self._items.append(EntryItem(site.op, operands, defined, step))
        return defined

    def _fixed(
        self, common: Sequence[int | None]
    ) -> tuple[FixedOperands, Sequence[int | None]]:
        """
        Divides the operands of a call into arguments of the program and all other
        operands. `common` holds the slots (numbers) of operands that are the same in
        all micro-batches. An entry is None for an operand that differs between
        micro-batches.
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

    def run(self, results: Sequence[int], *, paired: bool = False) -> Machine:
        """
        Executes the program and returns the simulated machine. `results` are the slots
        (numbers) of the program's results. With `paired`, forward and backward calls
        with all-to-alls are computed beside each other.
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
        if paired:
            renamed = self._pair_calls()
            results = [renamed.get(slot, slot) for slot in results]
        for item in self._in_order():
            self._compile(item)
        updated = {
            results[i]: a
            for i, a in updated_arguments(function).items()
            if self._types[results[i]] == self._types[a]
        }
        kept = common.compiler.kept_by_software(function, self._builder.steps)
        compiled = self._builder.finish(results, updated, kept)
        arguments = [
            common.compiler.allocation_of_type(type_, slot, function)
            for slot, type_ in enumerate(self._types[: compiled.arguments])
        ]
        positions = len(common.device_map.index)
        machine = UniformMachine(positions, common.shared.summaries)
        placed = self._placed(compiled)
        buckets = gradient_buckets(
            function, self._types[: compiled.arguments], arguments, common.device_map
        )
        reserved = Reserved.of(common.device_map, placed, positions, buckets)
        return execute(
            machine, compiled, arguments, placed, common.device_map, reserved
        )

    def _pair_calls(self) -> Mapping[int, int]:
        """
        Joins forward and backward calls, in place. Returns the new slots of the results
        of joined calls, by their slots before.
        """
        common = self.compilation
        sites: dict[Operation, CompiledSite] = {
            site.op: site for site in self._sites.values()
        }
        joined: dict[tuple[Operation, ...], CompiledSite] = {}

        def exchanges(first: CallStep, second: CallStep) -> bool:
            overlapped, pair = common.shared.overlapped, (first, second)
            assert overlapped is not None
            return (
                [sites[step.op].is_forward for step in pair] == [True, False]
                # The functions were compiled for one mesh, or for meshes alike.
                and first.callee.mesh == second.callee.mesh
                and all(overlapped.exchanges(step.callee) for step in pair)
            )

        def join(first: CallStep, second: CallStep) -> CompiledSite:
            ops = first.op, second.op
            if ops not in joined:
                pair = sites[ops[0]], sites[ops[1]]
                site = common.joined(pair)
                self._joined.append(site)
                joined[ops] = site
            return joined[ops]

        self._items, renamed = paired_items(self._items, exchanges, join, self._again)
        return renamed

    def _again(self, slots: Sequence[int]) -> range:
        """Reserves new slots for values that have the types of the values in `slots`."""
        return self._define([self._types[slot] for slot in slots])

    def _in_order(self) -> list[EntryItem]:
        """
        Returns the ops in the order of execution, after collectives were merged into
        buckets.
        """
        items, bucketer = self._items, self.compilation.shared.bucketer
        if bucketer is None:
            return items
        found = bucketer.form(
            [item.op for item in items],
            [item.operands for item in items],
            [item.defined for item in items],
        )
        order: list[Sequence[EntryItem]] = [[item] for item in items]
        for bucket in found:
            members = [items[i] for i in bucket.members]
            for i in bucket.members:
                order[i] = ()
            order[bucket.place] = members
        return [item for group in order for item in group]

    def _compile(self, item: EntryItem) -> None:
        """
        Appends the step of an op to the compiled function. If the op communicates while
        it computes, the step of this communication comes before it.
        """
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
        Returns the functions of the pipeline's program in place of the shared
        functions. Each stage has its own function. All stages on a mesh share the
        functions that the functions of the stages call.
        """
        names = [mesh.name for mesh in self.compilation.fold.stages]
        placed: dict[object, PlacedFunction] = {}
        calls = [
            (s.op, s.callee, s.mesh) for s in compiled.steps if isinstance(s, CallStep)
        ]
        stages = {site.op for site in (*self._sites.values(), *self._joined)}
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
    Simulates the pipelines of a divided program, for any number of micro-batches.
    Raises NotUniform if the devices of a mesh differ.
    """

    def __init__(self, division: DividedProgram, shared: SharedStages):
        self.division = division
        self._shared = shared
        self._compilations: dict[int, Compilation] = {}
        """The compilations, by number of micro-batches."""

    def step(
        self,
        division: DividedProgram,
        options: ScheduleOptions,
        *,
        paired: bool = False,
    ) -> Step:
        """
        Returns the time and memory of one step of a pipeline. They are equal to the
        results of `simulate` for the program that `distribute` makes. `division` is the
        division that the simulator was made with, or the same division for another
        number of micro-batches. With `paired`, forward and backward calls with
        all-to-alls are computed beside each other. Raises DistIRError if the pipeline
        is not possible, and NotUniform if the devices of a mesh differ.
        """
        structure, device_map = division.structure, self._shared.device_map
        trains = bool(structure.backward)
        schedule, steps = planned(options, structure.micro_batches, trains)
        check_fits(schedule, options.p, structure)
        count = structure.micro_batches
        if count not in self._compilations:
            meshes = division.meshes(schedule.ranks)
            fold = division.fold(meshes, self._shared.compiler.rule)
            before = next(iter(self._compilations.values()), None)
            self._compilations[count] = Compilation(
                structure, fold, self._shared, before
            )
        compilation = self._compilations[count]
        fold = compilation.fold
        entry = CompiledEntry(division, compilation)
        sends = not options.blocking_sends
        results = division.emit(schedule, steps, fold, entry, asynchronous=sends)
        machine = entry.run(results, paired=paired)
        compilation.contents.share()
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
    Returns the pipeline schedule for `options` and the order of its actions on all
    ranks. Results are cached, because many programs share a schedule. Raises
    DistIRError if the schedule is not possible.
    """
    schedule = options.schedule_of(micro_batches, trains)
    return schedule, global_steps(schedule)  # which also checks it
