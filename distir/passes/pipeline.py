"""`pipeline`: divides a program into stages that run micro-batches by a schedule."""

from __future__ import annotations

from dataclasses import dataclass, fields

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.options import same_option
from distir.passes.options import DistIRPass
from distir.pipelining import PipelineOptions, ScheduleOptions
from distir.planning.stages import make_pipeline_as_asked


@dataclass(frozen=True)
class PipelinePass(ScheduleOptions, DistIRPass):
    """
    Turns a program over micro-batches into a pipeline (Santhanam et al. 2021, section
    2.1).

    The first axis of the program's mesh is "k", the micro-batch axis. Its coordinates
    are moments in time instead of devices. A value that is split over "k" belongs to a
    micro-batch. A value that is partial over "k" is a term of a sum over micro-batches.
    The sharding rules thus determine the ops that run once for each micro-batch, the
    values that are added up (gradients) and the values that are concatenated at the end
    (outputs). With p = 1 this is gradient accumulation.

    The ops of a micro-batch are divided into stages. A backward op belongs to the stage
    of its forward op. Each phase (forward or backward) of each stage becomes a function
    on the mesh of that stage. The entry function calls these functions in the order of
    the schedule. A value is sent directly from its stage to every stage that needs it.
    Run the pass after `partition{lower=false}`, and run `lower-reshard` after it.

    - `p`: the number of ranks of the pipeline. Each rank is a mesh of the other axes,
      over devices of its own. The pipeline uses the first devices of the cluster.
    - `stage_meshes`: the mesh of each rank, such as `d=2,t=2`, if ranks have different
      meshes. The axes are those of the program's mesh, and each size must divide the
      size of the axis there. Layouts stay the same over the axes of a rank. Every
      device receives its own part of values from other ranks. `search` searches meshes
      and stages, and takes the fastest found.
    - `schedule`, `chunks`, `schedule_file`, `blocking_sends`: the order of the work;
      see `distir.pipelining.options`.
    - `stages`: the beginnings of stages. By default, these are the stages of
      `search-stages`, if it ran before, else stages of balanced work. `uniform`: equal
      numbers of outlined layers in each stage. `search`: runs `search-stages` first.
      Otherwise a list of scopes, such as `transformer.h.4`, at which the second and
      later stages begin.
    """

    name = "pipeline"

    stages: tuple[str, ...] = same_option(PipelineOptions, "stages")

    @staticmethod
    def of(options: PipelineOptions) -> PipelinePass:
        """
        Returns the pass that makes a pipeline with the given `options` from a program
        over `k` micro-batches.
        """
        own = {
            field.name: getattr(options, field.name) for field in fields(PipelinePass)
        }
        return PipelinePass(**own)

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        make_pipeline_as_asked(op, self, self.stages)
