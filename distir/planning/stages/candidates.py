"""Enumerates divisions into stages that may be the fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from distir.errors import DistIRError
from distir.planning.stages.graph import StageGraph
from distir.solver.stages import StageDivision, StageProblem, balance_of, cheapest

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
