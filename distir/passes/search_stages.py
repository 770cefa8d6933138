"""`search-stages`: which stage of a pipeline each op runs on."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.pipelining import ScheduleOptions
from distir.planning.stages.search import search_stages


@dataclass(frozen=True)
class SearchStagesPass(ScheduleOptions, DistIRPass):
    """
    Divides a program that is distributed over time into the stages of a pipeline (Rhino
    section 5): marks each forward op with its stage (`dist.stage`), which `pipeline`
    follows. Run it between `partition{lower=false}` and `pipeline`, or with
    `distribute{stages=search}`.

    Ops cost what the simulator says, calls of layers being one op each. The busiest stage
    has as little to do as possible, or a little more if that spares communication, under
    a limit to the memory of each stage; a value is charged once for each stage that it is
    sent to, however many it skips. Divisions for several load caps are compared with each
    other, with equal numbers of layers and with the default of `pipeline`: the simulator
    says which makes the fastest pipeline among those that fit.

    - `p`, `schedule`, `chunks`, `schedule_file`, `blocking_sends`: of the pipeline;
    - `method`: `in-order` divides the program's order by dynamic programming;
      `integer-program` is exact for branches side by side, but slow; `auto` takes the
      second besides the first where a graph that is small enough has branches;
    - `time_limit`: seconds, of which the divisions take half at most; those that were not
      simulated by then are left out, all but the one that is estimated to be the fastest.
      By default 10 s, after which what `pipeline` would do by itself is still simulated.

    Where ops say that stages begin with them (`dist.stage_start`), that is kept.

    `dist.notes` says what was chosen, and how far it may be from the best.
    """

    name = "search-stages"

    method: str = "auto"
    time_limit: float | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        search_stages(op, self, self.method, self.time_limit)
