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
    Divides a program over micro-batches into the stages of a pipeline (Rhino section 5):
    marks each forward op with its stage (`dist.stage`), which `pipeline` follows. Run it
    between `partition{lower=false}` and `pipeline`, or with `distribute{stages=search}`.

    Ops cost what the simulator says; a call of a layer is one op. The busiest stage has as
    little to do as possible, or a little more if that saves communication, under a limit of
    memory for each stage; a value is charged once for each stage that it is sent to,
    however many it skips. Divisions for several load caps are compared with each other,
    with equal numbers of layers and with the default of `pipeline`: the simulator says
    which makes the fastest pipeline among those that fit.

    - `p`, `schedule`, `chunks`, `schedule_file`, `blocking_sends`: of the pipeline;
    - `method`: `in-order` divides the program's order by dynamic programming;
      `integer-program` is exact for parallel branches, but slow; `auto` also takes the
      second if a graph that is small enough has branches;
    - `time_limit`: seconds, of which the divisions take half at most; those that were not
      simulated by then are left out, except for the one that is estimated to be the
      fastest. By default 10 s, after which the default division of `pipeline` is still
      simulated.

    If ops are marked as beginnings of stages (`dist.stage_start`), that is obeyed.

    `dist.notes` says what was chosen, and how far it may be from the best.
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
