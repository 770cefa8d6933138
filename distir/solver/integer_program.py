"""
Solve a graph as an integer program.

With HiGHS the relaxation comes first: it gives a bound, and for each alternative and each pair
how much more than the bound a choice with it costs at least. Only what costs little more is
kept; what is left is reduced again and is much smaller. Its optimum is that of the whole
unless it costs more than what was left out, in which case more is kept. Memory rows are added
at the points that a solution exceeds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from distir.errors import DistIRError
from distir.solver.failures import InfeasibleError
from distir.solver.graph import Graph, replay
from distir.solver.highs import Highs
from distir.solver.problem import Costs
from distir.solver.program import Program, Rows, violated
from distir.solver.reductions import reduce

SolverName = Literal["highs", "cbc"]
"""What is run: HiGHS in this process, or CBC through PuLP."""

# Costs that differ by less than this fraction are the same: sums of floats are rounded.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Found:
    """
    What a method found for a graph: a choice of its nodes or None, what it costs, a bound
    that no choice undercuts (infinite: there is none), and whether the user interrupted.
    """

    choice: dict[int, int] | None
    objective: float
    bound: float
    interrupted: bool = False


def solve_integer_program(
    graph: Graph,
    solver: SolverName = "highs",
    *,
    time_limit: float = math.inf,
    gap: float = 0.0,
    start: Mapping[int, int] | None = None,
) -> Found:
    """
    Solve a reduced graph within a time and to a relative gap, from a choice to start with if
    there is one. On a time-out or an interruption the best found is the answer.
    """
    end = time.monotonic() + time_limit
    if solver == "highs":
        return _Relaxed(graph, gap, end, start).run()
    if solver == "cbc":
        return _solve_with_cbc(graph, gap, end, start)
    raise DistIRError(f"there is no solver {solver!r}: choose highs or cbc")


class _Relaxed:
    """The relaxation, and the search among what costs little more than it."""

    def __init__(
        self, graph: Graph, gap: float, end: float, start: Mapping[int, int] | None
    ):
        self.graph, self.gap, self.end = graph, gap, end
        self.program = Program(graph)
        self.points: list[int] = []
        self.bound = -math.inf
        self.best = None if start is None else dict(start)
        self.objective = math.inf if start is None else graph.cost(start)

    def left(self) -> float:
        return self.end - time.monotonic()

    def found(self, interrupted: bool = False) -> Found:
        return Found(
            self.best, self.objective, min(self.bound, self.objective), interrupted
        )

    def run(self) -> Found:
        reduced, interrupted = self.relax()
        if reduced is None:
            if self.bound < math.inf and not interrupted and self.left() > 0:
                return solve_directly(
                    self.graph, self.points, self.gap, self.end, self.best
                )
            return self.found(interrupted)
        relaxed = self.bound
        slack = max(1e-3 * abs(relaxed), self.program.scale * 1e-3)
        while True:
            most = float(reduced.max(initial=0.0)) * self.program.scale
            whole = slack >= most
            part = self.part(reduced, slack)
            if part is not None:
                found = solve_directly(part, [], self.gap, self.end, None)
                interrupted |= found.interrupted
                if found.choice is not None and found.objective < self.objective:
                    self.best = replay(part.steps, found.choice)
                    self.objective = found.objective
                # A choice is in this part, or costs the slack more than the bound.
                outside = math.inf if whole else relaxed + slack
                self.bound = max(self.bound, min(found.bound, outside))
            elif whole:
                self.bound = math.inf
            if interrupted or self.left() <= 0:
                return self.found(interrupted)
            if whole:
                return self.found()
            slack *= 10
            if self.best is not None:
                gap = max(self.gap, ROUNDING) * abs(self.objective)
                if self.objective - self.bound <= gap:
                    return self.found()
                # What costs more above the relaxation is not better than the best.
                enough = self.objective - relaxed + ROUNDING * self.program.scale
                slack = min(slack, max(enough, slack / 5))

    def relax(self) -> tuple[Costs | None, bool]:
        """The reduced costs of the relaxation with all memory rows, once it has them."""
        highs = Highs(self.program, relaxed=True)
        graph = self.graph
        while True:
            answer = highs.run(self.left())
            if answer.columns is None or answer.interrupted:
                self.bound = max(self.bound, answer.bound)
                return None, answer.interrupted
            self.bound = self.program.real(answer.bound)
            load = self.program.load(answer.columns)
            new = violated(load, graph.capacity, self.points)
            if not len(new):
                return answer.reduced, False
            self.points += new.tolist()
            highs.add(self.program.points(new))

    def part(self, reduced: Costs, slack: float) -> Graph | None:
        """The graph without what costs more than the slack; None: nothing is left."""
        graph, program = self.graph, self.program
        kept = reduced * program.scale <= slack
        part = graph.copy(memory=True)
        for i, at in program.first.items():
            mask = kept[at : at + len(graph.costs[i])]
            part.costs[i] = np.where(mask, graph.costs[i], np.inf)
        for (i, j), (at, a, b) in program.pairs.items():
            gone = ~kept[at : at + len(a)]
            if gone.any():
                matrix = graph.near[i][j].copy()
                matrix[a[gone], b[gone]] = np.inf
                part.near[i][j] = matrix
                part.near[j][i] = matrix.T
        try:
            reduce(part)
        except InfeasibleError:
            return None
        return part


def solve_directly(
    graph: Graph,
    points: list[int],
    gap: float,
    end: float,
    start: Mapping[int, int] | None,
) -> Found:
    """A reduced graph as one integer program in HiGHS, from the memory rows of some points."""
    if not graph.costs or (graph.capacity < 0).any():
        fits = not (graph.capacity < 0).any()
        return Found(
            {} if fits else None, graph.constant, graph.constant if fits else math.inf
        )
    program = Program(graph)
    columns = None if start is None else program.assignment(start)
    known = list(points)
    extra = [program.points(np.array(known, np.int64))]
    bound = -math.inf
    while True:
        highs = Highs(program)
        for rows in extra:
            highs.add(rows)
        answer = highs.run(end - time.monotonic(), gap, columns)
        bound = max(bound, program.real(answer.bound))
        stopped = answer.interrupted or time.monotonic() >= end
        if answer.columns is None:
            return Found(None, math.inf, bound, answer.interrupted)
        choice = program.choice(answer.columns)
        load = graph.load(choice)
        if not (load > graph.capacity).any():
            objective = graph.cost(choice)
            return Found(choice, objective, min(bound, objective), answer.interrupted)
        if stopped:
            return Found(None, math.inf, bound, answer.interrupted)
        new = violated(load, graph.capacity, known)
        if len(new):
            known += new.tolist()
            extra.append(program.points(new))
        else:
            # It exceeds a row within the solver's tolerance.
            point = int((load - graph.capacity).argmax())
            extra.append(program.cover(choice, point))


def _solve_with_cbc(
    graph: Graph, gap: float, end: float, start: Mapping[int, int] | None
) -> Found:
    from distir.solver.cbc import run_cbc

    program = Program(graph)
    columns = None if start is None else program.assignment(start)
    extra: list[Rows] = [program.points(np.arange(len(graph.limit)))]
    while True:
        answer = run_cbc(program, extra, end - time.monotonic(), gap, columns)
        bound = program.real(answer.bound)
        if answer.columns is None:
            return Found(None, math.inf, bound, answer.interrupted)
        choice = program.choice(answer.columns)
        over = graph.load(choice) - graph.capacity
        if not (over > 0).any():
            objective = graph.cost(choice)
            return Found(choice, objective, min(bound, objective), answer.interrupted)
        extra.append(program.cover(choice, int(over.argmax())))
