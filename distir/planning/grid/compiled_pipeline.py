"""
A pipeline compiled for the simulator as it is emitted, without the program that it would be.

`pipeline` calls the function of a stage for every micro-batch, and such calls are most of its
work and of the simulator's. Here a function is built, compiled and summarised once for all
stages that do the same, and a call of it is a step of the simulator right away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from xdsl.dialects.builtin import UnitAttr
from xdsl.dialects.func import CallOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from distir.dialects.collective import CollectiveOp
from distir.dialects.dist import ASYNCHRONOUS, ReshardOp, SendOp
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.interpreters.simulator.engine.compiled import (
    NOWHERE,
    CompiledFunction,
    CompiledOp,
    Compiler,
    FixedOperands,
    FunctionBuilder,
    PlacedFunction,
)
from distir.interpreters.simulator.engine.device_map import UniformDeviceMap
from distir.interpreters.simulator.engine.machine import Machine
from distir.interpreters.simulator.engine.reserved import Reserved
from distir.interpreters.simulator.engine.run import execute
from distir.interpreters.simulator.engine.summaries import Summaries
from distir.interpreters.simulator.simulate import batch_size
from distir.passes.lower_reshard import ReshardLowering, reshards
from distir.passes.pipeline import PipelinePass
from distir.pipelining import Action, Schedule, check_schedule, global_steps
from distir.program import updated_arguments
from distir.transforms.pipelines.division import DividedProgram
from distir.transforms.pipelines.fold import Fold
from distir.transforms.pipelines.functions import (
    StageFunction,
    StageFunctionBuilder,
    StageOps,
)


@dataclass
class _Site:
    """
    A stage's use of a function: what it calls where, by an op that stands for all calls.
    Operands of all micro-batches are `fixed`, or arise on the way: these stand in `common`
    among those that are of a micro-batch (None).
    """

    op: CallOp
    callee: CompiledFunction
    mesh: int
    fixed: FixedOperands | None = None
    common: Sequence[int | None] = ()


@dataclass(frozen=True)
class _Shared:
    """A function of stages that do the same, and the axes that it communicates along."""

    function: StageFunction
    compiled: CompiledFunction
    axes: frozenset[tuple[str, ...]]


@dataclass
class CompiledPipeline:
    """
    The `Entry` of a divided program whose meshes are those of `fold`, all of whose devices do
    the same (`device_map`).
    """

    division: DividedProgram
    fold: Fold
    device_map: UniformDeviceMap
    _sites: dict[StageFunction, _Site] = field(
        default_factory=dict[StageFunction, _Site]
    )
    _shared: dict[object, _Shared] = field(default_factory=dict[object, _Shared])
    # By what tells them apart: each function of a stage is its own, one that it calls is
    # the same for all on its mesh.
    _placed: dict[object, PlacedFunction] = field(
        default_factory=dict[object, PlacedFunction]
    )
    # Values are known by their ids, so that what defines them has to stay.
    _kept: list[Operation] = field(default_factory=list[Operation])
    _lowered: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self._compiler = Compiler(self.fold.made, self.device_map)
        self._lowering = ReshardLowering({m.name: m for m in self.fold.stages})
        self._block = Block()
        self._entry = FunctionBuilder("", 0)
        self._types: list[Attribute] = []
        self._values: dict[int, SSAValue] = {}
        self._sends: dict[tuple[int, int], CompiledOp] = {}

    def arguments(self, types: Sequence[Attribute]) -> Sequence[int]:
        """See `Entry`. A value is its slot."""
        self._types += types
        self._entry = FunctionBuilder(self.fold.entry, len(types))
        return range(len(types))

    def type_of(self, value: int) -> Attribute:
        """See `Entry`."""
        return self._types[value]

    def name(self, value: int, old: SSAValue) -> None:
        """See `Entry`: nobody sees the names."""

    def op(
        self,
        make: Callable[[Sequence[SSAValue]], Operation],
        operands: Sequence[int],
    ) -> Sequence[int]:
        """See `Entry`."""
        op = make([self._value(slot) for slot in operands])
        if isinstance(op, ReshardOp):
            self._kept.append(op)
            parts = self._lowering.ops(op)
            if not parts:
                return operands
            return [self._add(part) for part in parts][-1].defined
        if isinstance(op, CallOp):
            self._lower()
        return self._add(op).defined

    def _value(self, slot: int) -> SSAValue:
        """What stands for a slot as an operand of an op."""
        if slot not in self._values:
            value = BlockArgument(self._types[slot], self._block, slot)
            self._values[slot] = value
            self._entry.bind([value], slot)
        return self._values[slot]

    def _add(self, op: Operation) -> CompiledOp:
        """Makes an op the next step."""
        self._kept.append(op)
        step = self._compiler.add(op, self._entry)
        self._types += [r.type for r in op.results]
        self._values.update(zip(step.defined, op.results, strict=True))
        callee = step.callee
        if callee is not None:
            assert step.mesh is not None  # all of a folded function is on one mesh
            mesh = self.fold.stages[step.mesh].name
            self._place(mesh, (self.fold.origin(callee.name), callee))
            self._place(mesh, *self._called(callee))
        return step

    def send(self, value: int, type_: Attribute, *, asynchronous: bool) -> int:
        """See `Entry`."""
        before = self._types[value]
        key = id(before), id(type_)
        known = self._sends.get(key)
        if known is None:
            op = SendOp.create(
                operands=[self._value(value)],
                result_types=[type_],
                attributes={ASYNCHRONOUS: UnitAttr()} if asynchronous else {},
            )
            self._sends[key] = self._add(op)
            return self._sends[key].defined.start
        entry, operands = self._entry, (value,)
        entry.use(operands)
        slot = entry.define(1)
        (result,) = known.results
        entry.add(
            CompiledOp(
                known.op,
                operands,
                known.positions,
                range(slot, slot + 1),
                transfers=known.transfers,
                is_asynchronous=asynchronous,
                issue=known.issue,
                results=(result._replace(slot=slot),),
            )
        )
        self._types.append(type_)
        return slot

    def stage_function(
        self, group: StageOps, mesh: str, added: tuple[SSAValue, ...]
    ) -> StageFunction:
        """See `Entry`. The function may be that of another stage, on another mesh."""
        likeness = self.division.likenesses.of(group)
        does = (likeness.key, tuple([group.accumulated.index(v) for v in added]))
        for where in (self.fold.stages[0].name, mesh):
            if (does, where) not in self._shared:
                self._shared[does, where] = self._build(group, where, added)
            found = self._shared[does, where]
            if self.device_map.alike(where, mesh, found.axes):
                break
        function = StageFunction(
            found.function.symbol, likeness.inputs, added, found.function.numbered
        )
        op = CallOp.create(properties={"callee": function.symbol})
        self._sites[function] = _Site(op, found.compiled, self.device_map.index[mesh])
        self._placed[function] = PlacedFunction(found.compiled, mesh)
        self._place(mesh, *self._called(found.compiled))
        return function

    def _place(self, mesh: str, *called: tuple[str, CompiledFunction]) -> None:
        """Notes what is called on a mesh, by its name before folding."""
        for name, function in called:
            self._placed.setdefault((name, mesh), PlacedFunction(function, mesh))

    def _build(
        self, group: StageOps, mesh: str, added: tuple[SSAValue, ...]
    ) -> _Shared:
        builder = StageFunctionBuilder(
            self.division.structure, self.fold, group, mesh, added
        )
        function = builder.build()
        self._lower()
        compiled = self._compiler.compile(
            self.fold.made[function.symbol.string_value()]
        )
        inner = [compiled, *(callee for _, callee in self._called(compiled))]
        axes = {
            step.op.axis_names
            for each in inner
            for step in each.steps
            if isinstance(step.op, CollectiveOp)
        }
        return _Shared(function, compiled, frozenset(axes))

    def _lower(self) -> None:
        """Lowers the reshards of the functions that are new."""
        for name, function in self.fold.made.items():
            if name not in self._lowered:
                self._lowered.add(name)
                for op in reshards(function):
                    self._kept.append(op)
                    self._lowering.lower(op)

    def _called(
        self, compiled: CompiledFunction
    ) -> Iterator[tuple[str, CompiledFunction]]:
        """What a function calls, directly or not, with the names before folding."""
        for step in compiled.steps:
            if step.callee is not None:
                yield self.fold.origin(step.callee.name), step.callee
                yield from self._called(step.callee)

    def call(
        self,
        function: StageFunction,
        common: Sequence[int | None],
        own: Sequence[int],
        returned: Sequence[SSAValue],
        types: Sequence[Attribute],
    ) -> Sequence[int]:
        """See `Entry`."""
        site, entry = self._sites[function], self._entry
        if site.fixed is None:
            site.fixed, site.common = self._fixed(common)
        operands = tuple(own)
        if site.common:
            left = iter(own)
            inputs = [next(left) if slot is None else slot for slot in site.common]
            operands = (*inputs, *left)
        entry.use(operands)
        first = entry.define(len(types))
        defined = range(first, first + len(types))
        entry.add(
            CompiledOp(
                site.op,
                operands,
                NOWHERE,
                defined,
                callee=site.callee,
                mesh=site.mesh,
                fixed=site.fixed,
            )
        )
        self._types += types
        return defined

    def _fixed(
        self, common: Sequence[int | None]
    ) -> tuple[FixedOperands, Sequence[int | None]]:
        """Of the operands of all micro-batches the program's arguments, and the others."""
        count = len(self.division.structure.function.body.block.args)
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
        """Executes the program, which returns these values."""
        function = self.division.structure.function
        updated = {
            results[i]: a
            for i, a in updated_arguments(function).items()
            if self._types[results[i]] == self._types[a]
        }
        compiled = self._entry.finish(results, updated)
        arguments = [
            self._compiler.allocation(self._value(slot), slot, function)
            for slot in range(compiled.arguments)
        ]
        placed = [PlacedFunction(compiled), *self._placed.values()]
        positions = len(self.device_map.index)
        machine = Machine(positions, summaries=Summaries(positions))
        machine.live += Reserved.of(self.device_map, placed, positions).total
        return execute(machine, compiled, arguments, placed, self.device_map)


class Step(NamedTuple):
    """
    A step of a program: its seconds, the samples of the batch in a second, and the most bytes
    on the device that has the least left of its `memory_bytes`.
    """

    seconds: float
    samples_per_s: float
    peak_bytes: int
    memory_bytes: int


def pipeline_step(
    division: DividedProgram, pipeline: PipelinePass, hardware: Hardware
) -> Step:
    """
    What a step of the pipeline takes that is made of a program, as `simulate` finds it for
    the program that `distribute` makes. Raises DistIRError, and NotUniform where devices of
    one mesh differ.
    """
    structure = division.structure
    schedule, steps = _planned(
        pipeline, structure.micro_batches, bool(structure.backward)
    )
    pipeline.check(schedule, structure)
    fold = division.fold(division.meshes(schedule.ranks))
    meshes = {mesh.name: mesh for mesh in fold.stages}
    device_map = UniformDeviceMap(meshes, list(meshes), hardware)
    entry = CompiledPipeline(division, fold, device_map)
    sends = not pipeline.blocking_sends
    machine = entry.run(division.emit(schedule, steps, fold, entry, asynchronous=sends))
    seconds, batch = machine.end, batch_size(structure.function)
    memory = [hardware.kinds[mesh.devices[0]].memory for mesh in fold.stages]
    peak, most = min(
        zip(machine.peak.tolist(), memory, strict=True),
        key=lambda device: device[1] - device[0],
    )
    return Step(seconds, batch / seconds if seconds else 0.0, peak, most)


@lru_cache(maxsize=128)
def _planned(
    pipeline: PipelinePass, micro_batches: int, trains: bool
) -> tuple[Schedule, list[list[Action]]]:
    """A schedule and its steps, the same for many programs. Raises DistIRError."""
    schedule = pipeline.schedule_of(micro_batches, trains)
    check_schedule(schedule)
    return schedule, global_steps(schedule)
