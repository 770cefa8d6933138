"""Divisions into stages to try, and the simulation of the pipelines that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from distir.errors import DistIRError
from distir.interpreters.simulator import Simulation, simulate
from distir.pipelining import ScheduleOptions
from distir.planning.stages.graph import StageGraph
from distir.solver.stages import StageDivision, StageProblem, balance_of, cheapest
from distir.transforms.pipelines.pipeline import make_pipeline
from distir.transforms.pipelines.stages import mark, take_marks
from distir.transforms.resharding import lower_reshards

SLACKS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""
By which fraction the busiest stage may exceed the best balance in order to save
communication. Which of them is best depends on the schedule; the simulator decides.
"""


@dataclass(frozen=True, eq=False)
class StagesCandidate:
    """
    A division into stages and its name. `division` is the solver's answer, None for a
    division from elsewhere. `is_usual` marks those that `pipeline` makes by itself.
    """

    name: str
    stages: tuple[int, ...]
    division: StageDivision | None = None
    is_usual: bool = False


def candidates(
    graph: StageGraph, method: str, end: float, usual: Mapping[str, Sequence[int]]
) -> list[StagesCandidate]:
    """
    Returns the divisions with the least communication under several load caps, searched
    until `end` on the monotonic clock, and the `usual` divisions by name; each division
    once. Memory is a limit where that is possible. Raises DistIRError.
    """
    problem = graph.problem

    def left(questions: int) -> float:
        return max(end - monotonic(), 0.0) / questions

    best = balance_of(problem, method, left(len(SLACKS) + 1))
    if isinstance(best, str) and problem.memory is not None:
        problem = _without_memory(problem)
        best = balance_of(problem, method, left(len(SLACKS) + 1))
    if isinstance(best, str):
        raise DistIRError(best)
    found: dict[tuple[int, ...], StagesCandidate] = {}
    for i, slack in enumerate(SLACKS):
        limit = left(len(SLACKS) - i)
        cap = best.bottleneck * (1 + slack)
        if i and limit <= 0:
            break
        division = cheapest(problem, cap, method, limit, best)
        name = "the best balance" if not slack else f"{100 * slack:g} % off balance"
        key = tuple(division.stages)
        found.setdefault(key, StagesCandidate(name, key, division))
    for name, stages in usual.items():
        key = tuple(stages)
        known = found.get(key)
        found[key] = StagesCandidate(
            name, key, known.division if known else None, is_usual=True
        )
    return list(found.values())


def _without_memory(problem: StageProblem) -> StageProblem:
    return StageProblem(
        problem.loads, problem.edges, problem.tensors, problem.stages, problem.layers
    )


@dataclass(frozen=True)
class Judge:
    """Simulates the pipelines that `pipeline` makes of copies of a program."""

    module: ModuleOp
    options: ScheduleOptions

    def simulate(self, stages: Mapping[Operation, int]) -> Simulation:
        """
        Simulates the pipeline whose forward ops are on these stages. Raises DistIRError.
        """
        mark(stages)
        copy = self.module.clone()
        take_marks(stages)
        make_pipeline(copy, self.options)
        lower_reshards(copy)
        return simulate(copy)


@dataclass(frozen=True)
class JudgedStages:
    """A division, the seconds of a step with it, and whether it fits into memory."""

    candidate: StagesCandidate
    step_time_s: float
    fits: bool


WORTH_SIMULATING = 1.15
"""
Divisions whose estimated step exceeds the shortest one by at most this factor are
simulated; estimates are within a few per cent.
"""


def simulated(
    graph: StageGraph,
    found: Sequence[StagesCandidate],
    judge: Judge,
    end: float,
    *,
    usual_too: bool,
) -> list[JudgedStages]:
    """
    Simulates divisions and returns the outcomes. Of those that should fit into memory, the
    one with the shortest estimated step comes first; then, until `end` on the monotonic
    clock, the usual ones and those that may be about as fast, or all while nothing fits.
    With `usual_too` the usual ones are simulated however long that takes.
    """
    step_time = {c: graph.step_time(c.stages) for c in found}
    order = sorted(found, key=lambda c: (not graph.fits(c.stages), step_time[c]))
    usual = [c for c in found if c.is_usual]
    slowest = WORTH_SIMULATING * step_time[order[0]]
    outcomes: list[JudgedStages] = []
    for candidate in dict.fromkeys((order[0], *usual, *order)):
        spared = usual_too and candidate.is_usual
        if outcomes and not spared and monotonic() > end:
            break
        slow = step_time[candidate] > slowest and not candidate.is_usual
        if slow and any(o.fits for o in outcomes):
            continue
        simulation = judge.simulate(graph.stages(candidate.stages))
        outcomes.append(
            JudgedStages(candidate, simulation.step_time_s, simulation.fits)
        )
    return outcomes
