"""`search-stages`: which stage of a pipeline each op runs on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp

from distir.passes.options import DistIRPass
from distir.passes.pipeline import PipelinePass
from distir.planning.annotations import add_notes
from distir.planning.stages import (
    Judge,
    JudgedStages,
    OpCosts,
    StageGraph,
    candidates,
    simulated,
)
from distir.solver.stages import StageDivision
from distir.transforms.pipelines.stages import UNIFORM, forward_stages, mark
from distir.transforms.pipelines.structure import Structure

SECONDS = 10.0
"""For the divisions and their simulation, without a limit."""


@dataclass(frozen=True)
class SearchStagesPass(DistIRPass):
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

    `dist.notes` says what was chosen, and how far it may be from the best.
    """

    name = "search-stages"

    p: int = 1
    schedule: str = ""
    chunks: int | None = None
    schedule_file: str = ""
    blocking_sends: bool = False
    method: str = "auto"
    time_limit: float | None = None

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pipeline = PipelinePass(
            p=self.p,
            schedule=self.schedule,
            chunks=self.chunks,
            schedule_file=self.schedule_file,
            blocking_sends=self.blocking_sends,
        )
        start = monotonic()
        structure = Structure(op)
        schedule = pipeline.schedule_for(structure)
        usual = dict(_usual_divisions(structure, schedule.stages))
        graph = StageGraph.of(structure, schedule, OpCosts.of(ctx, op, structure))
        limit = SECONDS if self.time_limit is None else self.time_limit
        half, end = start + limit / 2, start + limit
        found = candidates(graph, self.method, half, usual)
        judge, no_limit = Judge(ctx, op, pipeline), self.time_limit is None
        outcomes = simulated(graph, found, judge, end, usual_too=no_limit)
        best = min(outcomes, key=lambda o: (not o.fits, o.step_time_s))
        mark(graph.stages(best.candidate.stages))
        add_notes(op, [_chosen(graph, best, outcomes, len(found))])


def _usual_divisions(
    structure: Structure, count: int
) -> Iterator[tuple[str, list[int]]]:
    """What `pipeline` does by itself; raises its errors for what cannot be divided."""
    equal = forward_stages(structure, count, ())
    yield "equal work", [equal[op] for op in structure.forward]
    if sum(isinstance(op, CallOp) for op in structure.forward) >= count:
        uniform = forward_stages(structure, count, (UNIFORM,))
        yield "equal numbers of layers", [uniform[op] for op in structure.forward]


def _chosen(
    graph: StageGraph, best: JudgedStages, outcomes: Sequence[JudgedStages], found: int
) -> str:
    """What was chosen, and from what."""
    candidate, problem = best.candidate, graph.problem
    loads = problem.stage_loads(candidate.stages)
    text = (
        f"search-stages divided {len(graph.ops)} ops into {problem.stages} stages, "
        f"{candidate.name}: the busiest works {loads.max():.4g} s a step, the average "
        f"{loads.mean():.4g} s, sends take "
        f"{problem.communication(candidate.stages):.4g} s"
    )
    if candidate.division is not None:
        text += f" ({_proof(candidate.division)})"
    text += f"; simulated, a step takes {best.step_time_s:.4g} s"
    others = [o for o in outcomes if o is not best]
    if others:
        text += " (" + ", ".join(
            f"{o.candidate.name}: {o.step_time_s:.4g} s" for o in others
        )
        text += ")"
    if found > len(outcomes):
        text += f"; {len(outcomes)} of {found} divisions were simulated"
    return text if best.fits else text + "; it does not fit into memory"


def _proof(division: StageDivision) -> str:
    """How good a division is for its load cap."""
    if division.gap < 1e-6:
        return f"{division.method}, proven to be the best"
    if division.method == "in-order" and not division.bound:
        return "the best in the order of the program"
    return f"{division.method}, within {100 * division.gap:.2g} % of the bound"
