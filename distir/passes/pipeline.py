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
    Turns a program over micro-batches into a pipeline (Santhanam et al. 2021, section 2.1).

    The program's mesh has a first axis "k", the micro-batch axis, whose coordinates are
    moments instead of devices. A value split over it belongs to a micro-batch; one that is
    partial over it is a term of a sum over micro-batches. So the sharding rules say what
    runs once per micro-batch, sums (gradients) and concatenations in the end
    (outputs). With p = 1 this is gradient accumulation.

    The ops of a micro-batch are divided into stages, backward ops to the stage of their
    forward; each stage and phase becomes a function on that stage's mesh, and the entry
    function calls them in the order of the schedule, with sends straight from a stage to
    every stage that needs a value. Run it after `partition{lower=false}`, and
    `lower-reshard` after it.

    - `p`: ranks of the pipeline; each is a mesh of the other axes over devices of its own,
      the first ones of the cluster.
    - `stage_meshes`: the mesh of each rank, such as `d=2,t=2`, where they are to differ:
      the axes are the program's, of sizes that divide the program's, and layouts stay, over
      the axes that a rank has. Every device is sent its part of what other ranks compute.
      `search` takes the fastest meshes and stages that are found.
    - `schedule`, `chunks`, `schedule_file`, `blocking_sends`: the order of its work; see
      `distir.pipelining.options`.
    - `stages`: where stages begin. By default the stages that `search-stages` chose if it
      ran before, else the work is balanced; `uniform` gives stages equal numbers of
      outlined layers; `search` runs `search-stages` first; otherwise the scope that each
      stage but the first begins with, such as `transformer.h.4`.
    """

    name = "pipeline"

    stages: tuple[str, ...] = same_option(PipelineOptions, "stages")

    @staticmethod
    def of(options: PipelineOptions) -> PipelinePass:
        """Returns the pass that makes this pipeline of a program over `k` micro-batches."""
        own = {
            field.name: getattr(options, field.name) for field in fields(PipelinePass)
        }
        return PipelinePass(**own)

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        make_pipeline_as_asked(op, self, self.stages)
