"""
Proposes divisions of a program into stages, and simulates the resulting pipelines.
"""

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
The fractions by which the busiest stage may exceed the best balance in order to save
communication. The best fraction depends on the schedule, so the simulator decides.
"""


@dataclass(frozen=True, eq=False)
class StagesCandidate:
    """
    A division into stages, with its name.

    - `stages`: the stage of each node;
    - `division`: the answer of the solver, or None if the solver did not find the
      division;
    - `is_usual`: whether `pipeline` makes this division without a search.
    """

    name: str
    stages: tuple[int, ...]
    division: StageDivision | None = None
    is_usual: bool = False


def candidates(
    graph: StageGraph, method: str, end: float, usual: Mapping[str, Sequence[int]]
) -> list[StagesCandidate]:
    """
    Returns the divisions to try, each once: the divisions with the least communication
    under several load caps, and the divisions `usual`, given by name. The solver stops
    at the time `end` of the monotonic clock. The memory limit is dropped if no division
    keeps it. Raises DistIRError if the program cannot be divided.
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
    """Simulates pipelines. The pass `pipeline` makes them from copies of a program."""

    module: ModuleOp
    options: ScheduleOptions

    def simulate(self, stages: Mapping[Operation, int]) -> Simulation:
        """
        Returns the simulation of the pipeline whose forward ops are on the stages
        `stages`. Raises DistIRError if that pipeline cannot be made.
        """
        mark(stages)
        copy = self.module.clone()
        take_marks(stages)
        make_pipeline(copy, self.options)
        lower_reshards(copy)
        return simulate(copy)


@dataclass(frozen=True)
class JudgedStages:
    """A division, its simulated seconds per step, and whether it fits into memory."""

    candidate: StagesCandidate
    step_time_s: float
    fits: bool


WORTH_SIMULATING = 1.15
"""
Divisions are simulated if their estimated step time is at most this factor times the
shortest estimate. Estimates are within a few per cent.
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
    Simulates divisions and returns their outcomes. First comes the division with the
    shortest estimated step among the divisions that should fit into memory. The usual
    divisions come next, then divisions whose estimate is close to the shortest; as long
    as nothing fits, no division is skipped. No simulation starts after the time `end`
    of the monotonic clock, except that with `usual_too` all usual divisions are
    simulated.
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
