"""
A pipeline that is compiled for the simulator directly, without the program that it would
become.

`pipeline` calls the function of a stage for every micro-batch, and such calls are most of
its work and of the simulator's. Here a function is built, compiled and summarised once for
all stages that do the same, and each call of it becomes a step of the simulator at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from xdsl.dialects.builtin import SymbolRefAttr, UnitAttr
from xdsl.dialects.func import CallOp
from xdsl.ir import Attribute, Block, SSAValue

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.dist import ASYNCHRONOUS, SendOp
from distir.interpreters.simulator.engine.compiled import (
    CallStep,
    CompiledFunction,
    CompiledStep,
    FixedOperands,
    PlacedFunction,
)
from distir.interpreters.simulator.engine.machine import Machine
from distir.interpreters.simulator.engine.reserved import Reserved
from distir.interpreters.simulator.engine.run import execute
from distir.interpreters.simulator.engine.uniform import UniformMachine
from distir.interpreters.simulator.simulate import batch_size
from distir.pipelining import (
    Action,
    PipelineSchedule,
    ScheduleOptions,
    check_schedule,
    global_steps,
)
from distir.planning.grid.compiled_body import (
    Compilation,
    CompiledBody,
    Part,
    SharedFunction,
    SharedStages,
)
from distir.planning.layouts.fitted_plan import Step
from distir.program import updated_arguments
from distir.sharding.exchanges import exchanged_axes
from distir.transforms.pipelines.body import Make
from distir.transforms.pipelines.division import DividedProgram
from distir.transforms.pipelines.functions import (
    StageFunction,
    StageFunctionBuilder,
    StageOps,
)
from distir.transforms.pipelines.over_time import monoid_over_time
from distir.transforms.pipelines.pipeline import check_fits


@dataclass
class _CompiledSite:
    """
    Where a stage uses a function: what it calls and on which mesh, with one op that stands
    for all the calls. Operands that are the same in all micro-batches are `fixed` if they
    are arguments of the program; others stand in `common`, where None marks those that
    depend on the micro-batch.
    """

    op: CallOp
    callee: CompiledFunction
    mesh: int
    fixed: FixedOperands | None = None
    common: Sequence[int | None] = ()


class CompiledEntry(CompiledBody):
    """The `Entry` of a divided program, compiled for the simulator."""

    def __init__(self, division: DividedProgram, compilation: Compilation):
        super().__init__(compilation.fold.entry, compilation)
        self._division = division
        self._sites: dict[StageFunction, _CompiledSite] = {}
        # By the types before and after.
        self._sends: dict[tuple[int, int], CompiledStep] = {}

    def send(self, value: int, type_: Attribute, *, asynchronous: bool) -> int:
        """See `Entry`."""

        key = id(self.types[value]), id(type_)
        known, constant = self._sends.get(key), self.constants.get(value)
        slot = self.define([type_])
        if known is None or constant is not None:
            (source,) = Block(arg_types=[self.types[value]]).args
            op = SendOp.create(
                operands=[source if constant is None else constant.clone().results[0]],
                result_types=[type_],
                attributes={ASYNCHRONOUS: UnitAttr()} if asynchronous else {},
            )
            if constant is not None:
                self.constants[slot] = op
            known = self._sends[key] = self.compilation.step(op, (value,), slot)
        by = slot - known.defined.start
        self.steps.add(known.moved({known.operands[0]: value}, by))
        return slot

    def op(self, like: object, make: Make, operands: Sequence[int]) -> Sequence[int]:
        """See `EmittedBody`. No op of the entry function is left out, used or not."""
        return self.real(super().op(like, make, operands))

    def take(self, part: Part, slots: Mapping[int, int], by: int) -> None:
        """Instantiates a part at once."""
        self.compile(part, slots, by)

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
                functions[does, where] = self._build(group, where, added)
            found = functions[does, where]
            if common.device_map.alike(where, mesh, found.axes):
                break
        symbol = SymbolRefAttr(group.name)
        function = StageFunction(symbol, content.inputs, added, found.numbered)
        op = CallOp.create(properties={"callee": symbol})
        place = common.device_map.index[mesh]
        self._sites[function] = _CompiledSite(op, found.compiled, place)
        return function

    def _build(
        self, group: StageOps, mesh: str, added: tuple[SSAValue, ...]
    ) -> SharedFunction:
        common = self.compilation
        builder = StageFunctionBuilder[int](
            self._division.structure, common.fold, group, mesh, added
        )
        bodies: list[CompiledBody] = []

        def new() -> CompiledBody:
            bodies.append(CompiledBody(group.name, common))
            return bodies[-1]

        results = builder.build(new)
        compiled = bodies[-1].finish(results, common.device_map.index[mesh])
        ops = (
            step.op
            for each in (compiled, *(callee for _, callee in common.called(compiled)))
            for step in each.steps
        )
        axes = {
            op.axis_names if isinstance(op, CollectiveOp) else exchanged_axes(op)
            for op in ops
        } - {()}
        return SharedFunction(compiled, frozenset(axes), builder.numbered)

    def call(
        self,
        function: StageFunction,
        common: Sequence[int | None],
        own: Sequence[int],
        returned: Sequence[SSAValue],
        types: Sequence[Attribute],
    ) -> Sequence[int]:
        """See `Entry`."""
        site, steps = self._sites[function], self.steps
        if site.fixed is None:
            site.fixed, site.common = self._fixed(common)
        operands = tuple(own)
        if site.common:
            left = iter(own)
            inputs = [next(left) if slot is None else slot for slot in site.common]
            operands = (*inputs, *left)
        first = self.define(types)
        defined = range(first, first + len(types))
        steps.add(
            CallStep(
                op=site.op,
                operands=operands,
                defined=defined,
                callee=site.callee,
                mesh=site.mesh,
                fixed=site.fixed,
            )
        )
        return defined

    def _fixed(
        self, common: Sequence[int | None]
    ) -> tuple[FixedOperands, Sequence[int | None]]:
        """
        Divides the operands that a call has in all micro-batches (slots; None where they
        differ) into those that are arguments of the program, and the others.
        """
        count = len(self._division.structure.function.body.block.args)
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
        function, device_map = (
            self._division.structure.function,
            self.compilation.device_map,
        )
        updated = {
            results[i]: a
            for i, a in updated_arguments(function).items()
            if self.types[results[i]] == self.types[a]
        }
        compiled = self.finished(results, updated)
        compiler = self.compilation.compiler
        arguments = [
            compiler.allocation(type_, slot, function)
            for slot, type_ in enumerate(self.types[: compiled.arguments])
        ]
        placed = self._placed(compiled)
        positions = len(device_map.index)
        machine = UniformMachine(positions, self.compilation.shared.summaries)
        machine.live += Reserved.of(device_map, placed, positions).total
        return execute(machine, compiled, arguments, placed, device_map)

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
        seconds, batch = machine.end, batch_size(structure.function)
        kinds = device_map.hardware.kinds
        memory = [kinds[mesh.devices[0]].memory for mesh in fold.stages]
        devices = list(zip(machine.peak.tolist(), memory, strict=True))
        spare = tuple(most - peak for peak, most in devices)
        peak, most = min(devices, key=lambda device: device[1] - device[0])
        samples = batch / seconds if seconds else 0.0
        # Without a profile nothing is reserved beside the values.
        return Step(seconds, samples, peak, most, peak, spare)


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
