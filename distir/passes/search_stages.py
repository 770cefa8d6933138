"""`search-stages`: finds the pipeline stage of each op."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.options import same_option
from distir.passes.options import DistIRPass
from distir.pipelining import ScheduleOptions
from distir.planning.plans.options import RequestOptions
from distir.planning.stages.search import search_stages


@dataclass(frozen=True)
class SearchStagesPass(ScheduleOptions, DistIRPass):
    """
    Divides a program over micro-batches into the stages of a pipeline (Rhino, section
    5). Each forward op gets the number of its stage (`dist.stage`), which `pipeline`
    follows. Run the pass between `partition{lower=false}` and `pipeline`, or use
    `distribute{stages=search}`.

    The simulator gives the cost of each op; the call of a layer counts as one op. The
    search minimises the work of the busiest stage, under a memory limit for each stage.
    It accepts a little more work if that saves communication. A value is charged once
    for each stage that receives it, even if it passes over stages in between. The
    search makes several divisions, each with a different cap on the load of a stage.
    The simulator compares these divisions, a division into equal numbers of layers, and
    the default of `pipeline`. The fastest one that fits into memory is chosen.

    - `p`, `schedule`, `chunks`, `schedule_file`, `blocking_sends`: options of the
      pipeline; see `pipeline`;
    - `method`: `in-order` divides the program in its order, by dynamic programming;
      `integer-program` also considers parallel branches and is exact, but slow; `auto`
      uses `in-order`, and in addition `integer-program` for small graphs with branches;
    - `time_limit`: seconds; at most half of them are for finding divisions. When the
      time is over, divisions that were not simulated are left out, except the one with
      the fastest estimate. By default 10 s, and the default division of `pipeline` is
      simulated even after that.

    If ops are marked as the first of a stage (`dist.stage_start`), stages begin there
    and nothing is searched.

    `dist.notes` records the chosen division, and how far it can be from the best.
    """

    name = "search-stages"

    method: str = "auto"
    time_limit: float | None = same_option(RequestOptions, "time_limit")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.stage_meshes:
            raise DistIRError(
                "search-stages: where stages have meshes of their own, `pipeline` searches "
                "them itself; run pipeline{stages=search} or pipeline{stage-meshes=search}"
            )
        search_stages(op, self, self.method, self.time_limit)
