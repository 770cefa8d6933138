"""`pipeline`: stages, micro-batches and a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from distir.dialects.device import MeshOp
from distir.errors import DistIRError
from distir.passes.options import DistIRPass
from distir.pipelining import Phase, Schedule, build_schedule, check_schedule, read_csv
from distir.sharding.mesh import Mesh
from distir.transforms.pipelines.division import DividedProgram
from distir.transforms.pipelines.emit import Emitter
from distir.transforms.pipelines.entry import EntryFunction
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


@dataclass(frozen=True)
class PipelinePass(DistIRPass):
    """
    Turns a program that is distributed over time into a pipeline (DistIR section 2.1).

    The program's mesh has a first axis "k", the axis over time: its coordinates are
    micro-batches. A value split over it belongs to a micro-batch; one that is partial over
    it is a term of a sum over micro-batches. So the sharding rules say what runs once per
    micro-batch, what is added up (gradients) and what is joined in the end (outputs).
    With p = 1 this is gradient accumulation.

    The ops of a micro-batch are dealt out to stages, backward ops to the stage of their
    forward; each stage and phase becomes a function on that stage's mesh, and the entry
    function calls them in the order of the schedule, with sends straight from a stage to
    every stage that needs a value. Run it after `partition{lower=false}`, and
    `lower-reshard` after it.

    - `p`: ranks of the pipeline; each is a mesh of the other axes over devices of its
      own, the first ones of the cluster.
    - `schedule`: `gpipe`, `1f1b` (the default of a training step), `interleaved-1f1b`,
      `zb-h1`, `interleaved-zero-bubble`, `zbv`, `dualpipev`, or `forward` for inference
      (`distir.pipelining`); `chunks`: stages per rank, the fewest that it can have by
      default. `schedule_file`: a schedule as PyTorch's CSV, instead.
    - `stages`: where stages begin. By default the stages that `search-stages` chose if it
      ran before, else the work is balanced; `uniform` deals out equal numbers of outlined
      layers; otherwise the scope that each stage but the first begins with, such as
      `transformer.h.4`.
    - `blocking_sends`: a send occupies sender and receiver (DistIR's semantics). Otherwise
      devices compute meanwhile and wait where a value is used.
    """

    name = "pipeline"

    p: int = 1
    schedule: str = ""
    chunks: int | None = None
    stages: tuple[str, ...] = ()
    schedule_file: str = ""
    blocking_sends: bool = False

    def schedule_for(self, structure: Structure) -> Schedule:
        """The schedule of a program. Raises DistIRError."""
        schedule = self.schedule_of(structure.micro_batches, bool(structure.backward))
        self._check(schedule, structure)
        return schedule

    def schedule_of(self, micro_batches: int, trains: bool) -> Schedule:
        """The schedule of so many micro-batches. Raises DistIRError."""
        if self.schedule_file:
            if self.schedule or self.chunks is not None:
                raise DistIRError(
                    f"pipeline: the schedule comes from {self.schedule_file}, which says "
                    f"the order and the stages of each rank; leave out "
                    f"{'the name of a schedule' if self.schedule else 'chunks'}"
                )
            try:
                text = Path(self.schedule_file).read_text("utf-8")
            except OSError as error:
                raise DistIRError(
                    f"pipeline: cannot read the schedule {self.schedule_file}: {error.strerror}"
                ) from error
            return read_csv(text)
        name = self.schedule or ("1f1b" if trains else "forward")
        return build_schedule(name, self.p, micro_batches, self.chunks)

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        ops = self.emit(self.divide(op))
        block = op.body.block
        for old in list(block.ops):
            old.detach()
        block.add_ops(ops)

    def divide(self, module: ModuleOp) -> DividedProgram:
        """The first part: takes the program apart, in place. Raises DistIRError."""
        structure = Structure(module)
        schedule = self.schedule_for(structure)
        splits = any(
            a.phase is Phase.BACKWARD_INPUT for row in schedule.actions for a in row
        )
        if splits and CallSplitter(module).split(structure.backward):
            structure = Structure(module)
        return DividedProgram.of(module, structure, schedule.stages, self.stages)

    def emit(self, division: DividedProgram) -> list[Operation]:
        """The second part: the ops of a module that holds the pipeline."""
        structure = division.structure
        schedule = self.schedule_for(structure)
        ops = _stage_meshes(division, schedule.ranks)
        meshes = [Mesh.of(op) for op in ops]
        entry = structure.function.sym_name.data
        fold = Fold(structure.functions, entry, structure.mesh, meshes)
        function = EntryFunction(structure, fold)
        emitter = Emitter(
            structure,
            fold,
            _groups(division, schedule),
            division.homes,
            [meshes[schedule.stage_rank(s)] for s in range(schedule.stages)],
            function,
            asynchronous=not self.blocking_sends,
        )
        made = function.finish(emitter.run(schedule))
        return division.program(ops, [*fold.made.values(), made])

    def _check(self, schedule: Schedule, structure: Structure) -> None:
        check_schedule(schedule)
        if schedule.ranks != self.p:
            raise DistIRError(
                f"pipeline: the schedule has {schedule.ranks} ranks, but p is {self.p}"
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
