"""Searches for the division into pipeline stages with the shortest simulated step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp

from distir.pipelining import ScheduleOptions
from distir.planning.annotations import add_notes
from distir.planning.stages.costs import OpCosts
from distir.planning.stages.graph import StageGraph
from distir.planning.stages.judge import Judge, JudgedStages, candidates, simulated
from distir.sharding.mesh import Mesh
from distir.solver.stages import StageDivision
from distir.transforms.pipelines.division import stage_meshes
from distir.transforms.pipelines.pipeline import schedule_for
from distir.transforms.pipelines.stages import (
    UNIFORM,
    forward_stages,
    mark,
    stage_starts,
)
from distir.transforms.pipelines.structure import Structure

SECONDS = 10.0
"""The default time limit in seconds for finding and simulating divisions."""


def search_stages(
    module: ModuleOp,
    options: ScheduleOptions,
    method: str = "auto",
    time_limit: float | None = None,
) -> None:
    """
    Chooses a division into stages, marks each forward op of a program with its stage,
    and adds a note on the choice. The program must be split into micro-batches.
    `method` and `time_limit` (seconds) are the options of `search-stages`. Raises
    DistIRError for a program that cannot be divided.
    """
    start = monotonic()
    structure = Structure(module)
    schedule = schedule_for(structure, options)
    meshes = stage_meshes(structure, schedule, options.stage_shapes())
    if stage_starts(structure.forward, schedule.stages):
        mark(forward_stages(structure, meshes, ()))
        add_notes(module, ["search-stages: stages begin where the program says so"])
        return
    usual = dict(_usual_divisions(structure, meshes))
    graph = StageGraph.of(structure, schedule, OpCosts.of(module, structure))
    limit = SECONDS if time_limit is None else time_limit
    half, end = start + limit / 2, start + limit
    found = candidates(graph, method, half, usual)
    judge, no_limit = Judge(module, options), time_limit is None
    outcomes = simulated(graph, found, judge, end, usual_too=no_limit)
    best = min(outcomes, key=lambda o: (not o.fits, o.step_time_s))
    mark(graph.stages(best.candidate.stages))
    add_notes(module, [_chosen(graph, best, outcomes, len(found))])


def _usual_divisions(
    structure: Structure, meshes: Sequence[Mesh]
) -> Iterator[tuple[str, list[int]]]:
    """
    Yields the divisions that `pipeline` makes without a search, each with its name.
    Raises DistIRError for a program that cannot be divided.
    """
    equal = forward_stages(structure, meshes, ())
    yield "equal work", [equal[op] for op in structure.forward]
    if sum(isinstance(op, CallOp) for op in structure.forward) >= len(meshes):
        uniform = forward_stages(structure, meshes, (UNIFORM,))
        yield "equal numbers of layers", [uniform[op] for op in structure.forward]


def _chosen(
    graph: StageGraph, best: JudgedStages, outcomes: Sequence[JudgedStages], found: int
) -> str:
    """
    Returns a note that describes the chosen division and the alternatives. `found` is
    the number of divisions that were found.
    """
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
    """
    Returns a text on the quality of a division: its distance from the optimum under its
    load cap.
    """
    if division.gap < 1e-6:
        return f"{division.method}, proven to be the best"
    if division.method == "in-order" and not division.bound:
        return "the best in the order of the program"
    return f"{division.method}, within {100 * division.gap:.2g} % of the bound"
