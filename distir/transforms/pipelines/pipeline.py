"""
Turns a program over micro-batches into a pipeline, in two parts. The first part divides
the program into stages. The second part builds the ops for a schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from distir.errors import DistIRError
from distir.pipelining import (
    Phase,
    PipelineSchedule,
    ScheduleOptions,
    check_schedule,
    global_steps,
)
from distir.program import functions
from distir.program.functions import other_functions, separate_others
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.transforms.pipelines.division import DividedProgram
from distir.transforms.pipelines.entry import EntryFunction
from distir.transforms.pipelines.split_calls import CallSplitter
from distir.transforms.pipelines.structure import Structure


def make_pipeline(
    module: ModuleOp, options: ScheduleOptions, stages: Sequence[str] = ()
) -> dict[str, int]:
    """
    Turns a program into a pipeline, in place, and returns the stage of each argument by
    name. `stages` is the option `stages` of the pass `pipeline`: the scopes with which
    stages begin, or `uniform`. Functions that the program does not call stay unchanged.
    Raises DistIRError if the program cannot be divided in this way.
    """
    separate_others(module)
    others = other_functions(module)
    division = divided(module, options, stages)
    assigned = division.argument_stages()
    ops = pipeline_ops(division, options)
    block = module.body.block
    for old in list(block.ops):
        old.detach()
    block.add_ops(ops)
    made = functions(module)
    for function in others:
        name = function.sym_name.data
        if name in made:
            raise DistIRError(
                f"pipeline: a function of the pipeline is called @{name}, as one that the "
                f"program does not call; give that another name"
            )
        block.add_op(function)
    return assigned


def divided(
    module: ModuleOp, options: ScheduleOptions, stages: Sequence[str]
) -> DividedProgram:
    """
    Divides a program into stages, which is the first part of the rewrite. Changes the
    program in place. `stages` are the scopes with which stages begin, or `uniform`.
    Raises DistIRError if the program cannot be divided in this way.
    """
    structure = Structure(module)
    schedule = schedule_for(structure, options)
    splits = any(phase is Phase.BACKWARD_INPUT for _, phase in schedule.stage_phases)
    if splits and CallSplitter(module).split(structure.backward):
        structure = Structure(module)
    shapes = options.stage_shapes()
    check_shapes(shapes, structure.mesh)
    return DividedProgram.of(module, structure, schedule, stages, shapes)


def pipeline_ops(division: DividedProgram, options: ScheduleOptions) -> list[Operation]:
    """
    Builds the pipeline, which is the second part of the rewrite, and returns the ops of
    a module that holds the pipeline. Raises DistIRError if the pipeline cannot be
    built.
    """
    schedule = schedule_for(division.structure, options)
    meshes = division.meshes(schedule.ranks)
    fold = division.fold(meshes)
    entry, steps = EntryFunction(division.structure, fold), global_steps(schedule)
    sends = not options.blocking_sends
    results = division.emit(schedule, steps, fold, entry, asynchronous=sends)
    functions = [*fold.made.values(), entry.finish(results)]
    return division.program(meshes, functions)


def check_shapes(shapes: Sequence[Mapping[str, int]], mesh: Mesh) -> None:
    """
    Raises DistIRError if the mesh of a stage contradicts the program's mesh. `shapes`
    has the axis sizes for each rank. Each size must divide the size of the same axis in
    `mesh`. The micro-batch axis must not be among the axes.
    """
    for rank, sizes in enumerate(shapes):
        for axis, size in sizes.items():
            if axis == TIME_AXIS or mesh.sizes.get(axis, 1) % size:
                raise DistIRError(
                    f"pipeline: stage_meshes gives rank {rank} {axis}={size}, but the "
                    f"program is split over {dict(mesh.axes[1:])}; choose a divisor of that"
                )


def schedule_for(structure: Structure, options: ScheduleOptions) -> PipelineSchedule:
    """
    Returns the schedule that the options request for a program. Raises DistIRError if
    the schedule is invalid or is for a different number of micro-batches, ranks or
    phases than the program has.
    """
    trains = bool(structure.backward)
    schedule = options.schedule_of(structure.micro_batches, trains)
    check_schedule(schedule)
    check_fits(schedule, options.p, structure)
    return schedule


def check_fits(schedule: PipelineSchedule, ranks: int, structure: Structure) -> None:
    """
    Raises DistIRError unless a valid schedule suits the program: it must have `ranks`
    ranks and the program's number of micro-batches, and it must have backward actions
    if and only if the program is a training step.
    """
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
