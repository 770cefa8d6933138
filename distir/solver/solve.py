"""Solve a problem by the method that its size after the reductions asks for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from distir.errors import DistIRError
from distir.solver.elimination import Plan, eliminate, plan
from distir.solver.failures import InfeasibleError
from distir.solver.graph import Graph, replay
from distir.solver.integer_program import Found, SolverName, solve_integer_program
from distir.solver.problem import Problem, Solution
from distir.solver.reductions import reduce

Method = Literal["auto", "elimination", "integer-program"]
# Additions and comparisons that elimination may take: some seconds.
ELIMINATION_WORK = 4e9
ELIMINATION_ENTRIES = 5e8


def solve(
    problem: Problem,
    *,
    method: Method = "auto",
    solver: SolverName = "highs",
    time_limit: float | None = None,
    gap: float = 0.0,
    seed_choice: Sequence[int] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Solution:
    """
    The best choice found within a time (seconds) and to a gap (a fraction of the objective),
    with its bound. `seed_choice` is where to start from, `progress` hears what is done.
    Raises `InfeasibleError` when there is no choice.
    """
    return _Solve(problem, method, solver, time_limit, gap, seed_choice, progress).run()


class _Solve:
    def __init__(
        self,
        problem: Problem,
        method: Method,
        solver: SolverName,
        time_limit: float | None,
        gap: float,
        seed_choice: Sequence[int] | None,
        progress: Callable[[str], None] | None,
    ):
        self.begin = time.monotonic()
        self.problem = problem
        self.method = method
        self.solver: SolverName = solver
        self.limit = math.inf if time_limit is None else time_limit
        self.gap = gap
        self.seed = seed_choice
        self.progress = progress or _silent

    def left(self) -> float:
        return self.limit - (time.monotonic() - self.begin)

    def run(self) -> Solution:
        graph = Graph.of(self.problem)
        reduce(graph)
        self.progress(f"{len(graph.costs)} of {len(self.problem.costs)} nodes left")
        name, found = self.search(graph)
        if found.choice is None:
            raise InfeasibleError("no choice of alternatives is possible", ())
        choice = replay(graph.steps, found.choice)
        chosen = [choice[i] for i in range(len(self.problem.costs))]
        objective = self.problem.cost(chosen)
        bound = settled(self.problem, objective, found.bound)
        seconds = time.monotonic() - self.begin
        return Solution(chosen, objective, bound, name, seconds)

    def search(self, graph: Graph) -> tuple[str, Found]:
        if (graph.capacity < 0).any():
            return "reductions", Found(None, math.inf, math.inf)
        if not graph.costs:
            return "reductions", Found({}, graph.constant, graph.constant)
        if self.method != "integer-program":
            free, order = without_memory(graph)
            if elimination_fits(order):
                value, choice = eliminate(free, order)
                if not math.isfinite(value):
                    return "elimination", Found(None, math.inf, math.inf)
                choice = replay(free.steps, choice)
                if not (graph.load(choice) > graph.capacity).any():
                    return "elimination", Found(choice, value, value)
                if self.method == "elimination":
                    raise DistIRError(
                        "elimination knows no memory limit, and this one binds"
                    )
            elif self.method == "elimination":
                raise DistIRError(
                    f"elimination would need tables of {order.entries:.1e} entries: choose "
                    f"another method"
                )
        found = solve_integer_program(
            graph, self.solver, time_limit=self.left(), gap=self.gap
        )
        return f"integer program ({self.solver})", found


def _silent(_: str) -> None:
    return None


def without_memory(graph: Graph) -> tuple[Graph, Plan]:
    """A graph without its memory limit, reduced, and the plan of its elimination."""
    free = graph.copy(memory=False)
    reduce(free)
    return free, plan(free, ELIMINATION_WORK)


def elimination_fits(order: Plan) -> bool:
    """Whether a plan's tables fit in memory and in some seconds."""
    return order.entries <= ELIMINATION_ENTRIES and order.work <= ELIMINATION_WORK


def settled(problem: Problem, objective: float, bound: float) -> float:
    """
    A bound without its rounding: the next integer when all costs are, and the objective when
    it is closer to that than floats are to each other in sums.
    """
    if not math.isfinite(bound):
        return min(bound, objective)
    slack = 1e-9 * max(abs(objective), 1.0)
    if all(_integral(c) for c in problem.costs) and all(
        _integral(m) for m in problem.edges.values()
    ):
        bound = math.ceil(bound - max(slack, 1e-6))
    return objective if bound >= objective - slack else bound


def _integral(costs: np.ndarray) -> bool:
    return bool((np.isinf(costs) | (costs == np.floor(costs))).all())
