"""A pipeline in the place of a program that is distributed over time, in two parts."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from distir.dialects.device import MeshOp
from distir.errors import DistIRError
from distir.pipelining import Phase, Schedule, ScheduleOptions, check_schedule
from distir.sharding.mesh import Mesh
from distir.transforms.pipelines.division import DividedProgram
from distir.transforms.pipelines.emit import Emitter
from distir.transforms.pipelines.fold import Fold
from distir.transforms.pipelines.functions import StageOps
from distir.transforms.pipelines.over_time import over_time
from distir.transforms.pipelines.split_calls import CallSplitter
from distir.transforms.pipelines.structure import Structure

NAMES = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.BACKWARD_INPUT: "backward_input",
    Phase.BACKWARD_WEIGHT: "backward_weight",
}


def make_pipeline(
    module: ModuleOp, options: ScheduleOptions, stages: Sequence[str] = ()
) -> None:
    """Turns a program into a pipeline, with stages as `pipeline` takes them. Raises DistIRError."""
    ops = pipeline_ops(divided(module, options, stages), options)
    block = module.body.block
    for old in list(block.ops):
        old.detach()
    block.add_ops(ops)


def divided(
    module: ModuleOp, options: ScheduleOptions, stages: Sequence[str]
) -> DividedProgram:
    """The first part: takes the program apart, in place. Raises DistIRError."""
    structure = Structure(module)
    schedule = schedule_for(structure, options)
    splits = any(
        a.phase is Phase.BACKWARD_INPUT for row in schedule.actions for a in row
    )
    if splits and CallSplitter(module).split(structure.backward):
        structure = Structure(module)
    return DividedProgram.of(module, structure, schedule.stages, stages)


def pipeline_ops(division: DividedProgram, options: ScheduleOptions) -> list[Operation]:
    """The second part: the ops of a module that holds the pipeline. Raises DistIRError."""
    structure = division.structure
    schedule = schedule_for(structure, options)
    ops = _stage_meshes(division, schedule.ranks)
    meshes = [Mesh.of(op) for op in ops]
    entry = structure.function.sym_name.data
    fold = Fold(structure.functions, entry, structure.mesh, meshes)
    emitter = Emitter(
        structure,
        fold,
        _groups(division, schedule),
        division.homes,
        [meshes[schedule.stage_rank(s)] for s in range(schedule.stages)],
        asynchronous=not options.blocking_sends,
    )
    function = emitter.run(schedule)
    return division.program(ops, [*fold.made.values(), function])


def schedule_for(structure: Structure, options: ScheduleOptions) -> Schedule:
    """The schedule that the options ask for a program. Raises DistIRError."""
    trains = bool(structure.backward)
    schedule = options.schedule_of(structure.micro_batches, trains)
    _check(schedule, options.p, structure)
    return schedule


def _check(schedule: Schedule, ranks: int, structure: Structure) -> None:
    check_schedule(schedule)
    if schedule.ranks != ranks:
        raise DistIRError(
            f"pipeline: the schedule has {schedule.ranks} ranks, but p is {ranks}"
        )
    if schedule.micro_batches != structure.micro_batches:
        raise DistIRError(
            f"pipeline: the schedule has {schedule.micro_batches} micro-batches, but "
            f"the program is split into {structure.micro_batches}"
        )
    if schedule.forward_only and structure.backward:
        raise DistIRError(
            "pipeline: the schedule has no backward, but the program is a training "
            "step; choose one that has, such as 1f1b"
        )
    if not schedule.forward_only and not structure.backward:
        raise DistIRError(
            "pipeline: the schedule has backwards, but the program only computes "
            "forwards; choose the schedule `forward`"
        )


def _stage_meshes(division: DividedProgram, ranks: int) -> list[MeshOp]:
    """A mesh for each pipeline rank over the devices that are its, in place of the old."""
    mesh = division.structure.mesh
    (old,) = (op for op in division.module.body.block.ops if isinstance(op, MeshOp))
    axes = [(axis, size) for axis, size in mesh.axes[1:] if size > 1]
    size = prod(n for _, n in axes)
    cluster = old.cluster.string_value()
    return [
        MeshOp(
            mesh.name if ranks == 1 else f"stage{rank}",
            cluster,
            axes,
            range(rank * size, (rank + 1) * size),
        )
        for rank in range(ranks)
    ]


def _groups(
    division: DividedProgram, schedule: Schedule
) -> dict[tuple[int, Phase], StageOps]:
    """The ops of every stage and phase that the schedule has."""
    structure = division.structure
    groups: dict[tuple[int, Phase], StageOps] = {}
    phases = {(a.stage, a.phase) for row in schedule.actions for a in row}
    for stage, phase in sorted(phases, key=lambda p: (p[0], p[1].value)):
        source = structure.forward if phase is Phase.FORWARD else structure.backward
        ops = [op for op in source if division.stages[op] == stage]
        if phase in (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT):
            first = _needed_by_others(ops, structure)
            wanted = phase is Phase.BACKWARD_INPUT
            ops = [op for op in ops if (op in first) is wanted]
        if ops:
            name = NAMES[phase]
            if schedule.stages > 1:
                name = f"stage{stage}_{name}"
            groups[stage, phase] = StageOps.of(name, stage, ops, structure)
    return groups


def _needed_by_others(ops: Sequence[Operation], structure: Structure) -> set[Operation]:
    """
    Of a stage's backward ops those that the gradients for other stages need; on a stage
    that gives none, those that give no gradients of weights alone.
    """
    found = set(structure.backward) - set(ops)
    own: set[Operation] = set()
    for op in reversed(ops):
        if any(u.operation in found for r in op.results for u in r.uses):
            found.add(op)
            own.add(op)
    if own:
        return own
    wanted = [
        op for op in ops if any(over_time(r).kind != "partial" for r in op.results)
    ]
    return set(wanted) or set(ops)
