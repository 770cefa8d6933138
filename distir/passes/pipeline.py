"""`pipeline`: stages, micro-batches and a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from distir.errors import DistIRError
from distir.passes.options import DistIRPass
from distir.pipelining import (
    Phase,
    Schedule,
    build_schedule,
    check_schedule,
    global_steps,
    read_csv,
)
from distir.transforms.pipelines.division import DividedProgram
from distir.transforms.pipelines.entry import EntryFunction
from distir.transforms.pipelines.split_calls import CallSplitter
from distir.transforms.pipelines.structure import Structure


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
        check_schedule(schedule)
        self.check(schedule, structure)
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
            phase is Phase.BACKWARD_INPUT for _, phase in schedule.stage_phases
        )
        if splits and CallSplitter(module).split(structure.backward):
            structure = Structure(module)
        return DividedProgram.of(module, structure, schedule.stages, self.stages)

    def emit(self, division: DividedProgram) -> list[Operation]:
        """The second part: the ops of a module that holds the pipeline."""
        schedule = self.schedule_for(division.structure)
        meshes = division.meshes(schedule.ranks)
        fold = division.fold(meshes)
        entry = EntryFunction(division.structure, fold)
        steps = global_steps(schedule)
        results = division.emit(
            schedule, steps, fold, entry, asynchronous=not self.blocking_sends
        )
        functions = [*fold.made.values(), entry.finish(results)]
        return division.program(meshes, functions)

    def check(self, schedule: Schedule, structure: Structure) -> None:
        """Refuses a schedule that is one, but not for this program. Raises DistIRError."""
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
