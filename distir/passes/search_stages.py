"""`search-stages`: which stage of a pipeline each op runs on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from distir.errors import DistIRError
from distir.interpreters.cost import Simulation
from distir.passes.annotations import add_notes
from distir.passes.pipeline import PipelinePass
from distir.passes.pipelines.stages import UNIFORM, forward_stages, mark
from distir.passes.pipelines.structure import Structure
from distir.passes.stage_search import Candidate, Graph, Judge, OpCosts, candidates
from distir.pipelining import Schedule


@dataclass(frozen=True)
class SearchStagesPass(ModulePass):
    """
    Divides a program that is distributed over time into the stages of a pipeline (Rhino
    section 5): marks each forward op with its stage (`dist.stage`), which `pipeline`
    follows. Run it between `partition{lower=false}` and `pipeline`, or with
    `distribute{stages=search}`.

    Ops cost what the simulator says, calls of layers being one op each. The busiest stage
    has as little to do as possible, and then a little more if that spares communication,
    under a limit to the memory of each stage; skips between any stages are charged once for
    each stage that they lead to. Divisions that answer this for several load caps, equal
    numbers of layers and the stretches of equal work that are the default of `pipeline`
    become pipelines, and the simulator says which is fastest among those that fit.

    - `p`, `schedule`, `chunks`, `schedule_file`, `blocking_sends`: of the pipeline;
    - `method`: `in-order` divides the program's order by dynamic programming;
      `integer-program` is exact for branches side by side, but slow; `auto` takes the
      second besides the first where a graph that is small enough has branches;
    - `time_limit`: seconds for the divisions; then the best ones so far are taken.

    `dist.notes` says what was chosen, and how far it may be from the best.
    """

    name = "search-stages"

    p: int = 1
    schedule: str = ""
    chunks: int | None = None
    schedule_file: str = ""
    blocking_sends: bool = False
    method: str = "auto"
    time_limit: float = 5.0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pipeline = PipelinePass(
            p=self.p,
            schedule=self.schedule,
            chunks=self.chunks,
            schedule_file=self.schedule_file,
            blocking_sends=self.blocking_sends,
        )
        structure = Structure(op)
        schedule = pipeline.schedule_for(structure)
        others = dict(_simple_divisions(structure, schedule.stages))
        costs = OpCosts.of(ctx, op, structure)
        graph = Graph.of(structure, schedule, costs)
        found = candidates(graph, self.method, self.time_limit, others)
        judge = Judge(ctx, op, pipeline)
        outcomes = [(c, judge.simulate(graph.stages(c.stages))) for c in found]
        best = min(outcomes, key=lambda o: (not o[1].fits, o[1].step_time_s))
        mark(graph.stages(best[0].stages))
        add_notes(op, [_chosen(graph, schedule, best, outcomes)])


def _simple_divisions(
    structure: Structure, count: int
) -> Iterator[tuple[str, list[int]]]:
    """What `pipeline` does by itself; raises its errors for what cannot be divided."""
    equal = forward_stages(structure, count, ())
    yield "equal work", [equal[op] for op in structure.forward]
    try:
        uniform = forward_stages(structure, count, (UNIFORM,))
    except DistIRError:
        return  # fewer layers that are functions than stages
    yield "equal numbers of layers", [uniform[op] for op in structure.forward]


def _chosen(
    graph: Graph,
    schedule: Schedule,
    best: tuple[Candidate, Simulation],
    outcomes: Sequence[tuple[Candidate, Simulation]],
) -> str:
    """What was chosen, and from what."""
    candidate, simulation = best
    loads = graph.problem.stage_loads(candidate.stages)
    text = (
        f"search-stages divided {len(graph.ops)} ops into {schedule.stages} stages, "
        f"{candidate.name}: the busiest works {loads.max():.4g} s a step and the average "
        f"{loads.mean():.4g} s, sends take "
        f"{graph.problem.communication(candidate.stages):.4g} s"
    )
    if candidate.division is not None:
        gap = candidate.division.gap
        proof = "proven" if gap < 1e-6 else f"within {100 * gap:.2g} % of the bound"
        text += f" ({candidate.division.method}, {proof})"
    others = ", ".join(
        f"{c.name} {s.step_time_s:.4g} s" for c, s in outcomes if c is not candidate
    )
    text += f"; simulated, a step takes {simulation.step_time_s:.4g} s"
    text += f" ({others})" if others else ""
    if not simulation.fits:
        text += "; it does not fit into memory, and no other division does"
    return text
