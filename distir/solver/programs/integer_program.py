"""
Solves a graph as an integer program.

With HiGHS the relaxation comes first and gives a lower bound on the cost. It also gives
the excess of each alternative and each pair of alternatives: every choice that contains
the alternative or pair costs at least this much more than the bound. Only alternatives
and pairs with small excess are kept, and the graph is reduced again, which makes it
much smaller. The optimum of this part is also the optimum of the whole graph, unless
choices with the alternatives left out could cost less; in this case more alternatives
are kept. Memory rows are added at the points where a solution exceeds the limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

from distir.solver.clock import Clock
from distir.solver.graph import CostGraph, replay
from distir.solver.problem import Costs
from distir.solver.programs.highs import Highs
from distir.solver.programs.program import (
    ConstraintRows,
    IntegerProgram,
    ProgramSolution,
    violated,
)
from distir.solver.reductions import reduce
from distir.solver.result import ROUNDING, SolverResult, trivial_bound

NEAR = 0.9
"""
If the relaxation uses at least this fraction of the capacity of a point, the point gets
a memory row in advance, because an integer solution may exceed the capacity there.
"""

WIDE = 9e-3
"""
The largest excess over the bound, as a fraction of the bound, with which alternatives
are kept if a good choice is enough. More alternatives make the search several times
longer, and hardly ever lead to a better choice.
"""

HALVINGS = 10
"""
The number of times that the excess with which alternatives are kept is halved if too
many are kept.
"""

MANY_COLUMNS = 100_000
"""An integer program with more columns than this takes minutes."""

SolverName = Literal["highs", "cbc"]
"""The name of a solver: HiGHS in this process, or CBC through PuLP."""


def solve_integer_program(
    graph: CostGraph,
    solver: SolverName = "highs",
    *,
    clock: Clock,
    gap: float = 0.0,
    start: Mapping[int, int] | None = None,
    nodes: int | None = None,
    enough: float = -math.inf,
    columns: float = math.inf,
) -> SolverResult:
    """
    Returns the result for a reduced graph, up to the relative gap `gap`. `start` is a
    choice to start from, or None. With HiGHS, each search may be limited to `nodes`
    branch-and-bound nodes, and the search ends as soon as a choice costs less than
    `enough`. Integer programs with more than `columns` columns are not solved; the
    result may then have a gap or no choice. When the clock stops, the result is the
    best choice found.
    """
    found = decided(graph)
    if found is not None:
        return found
    if solver == "highs":
        return _Relaxed(graph, gap, clock, start, nodes, enough, columns).run()
    return _solve_with_cbc(graph, gap, clock, start)


def decided(graph: CostGraph) -> SolverResult | None:
    """
    Returns the result if the reductions have already solved the graph: either nothing
    fits, or no nodes are left. Returns None if nodes are left.
    """
    if (graph.capacity < 0).any():
        return SolverResult(None, math.inf, math.inf)
    return None if graph.costs else SolverResult({}, graph.constant, graph.constant)


class _Relaxed:
    """
    Solves the relaxation of a graph. Then searches among the alternatives that cost
    little more than the solution of the relaxation.
    """

    def __init__(
        self,
        graph: CostGraph,
        gap: float,
        clock: Clock,
        start: Mapping[int, int] | None,
        nodes: int | None,
        enough: float,
        columns: float,
    ):
        self.graph, self.gap, self.clock = graph, gap, clock
        self.nodes, self.enough, self.columns = nodes, enough, columns
        self.program = IntegerProgram(graph)
        self.bound = trivial_bound(graph)
        self.best = SolverResult.of(graph, start, self.bound)

    def run(self) -> SolverResult:
        graph, program = self.graph, self.program
        answer, _ = relax(program, graph, self.clock)
        self.bound = max(self.bound, program.real(answer.bound))
        best = self.best.better(SolverResult(None, math.inf, self.bound))
        reduced = answer.reduced
        if reduced is None:
            return best
        slack = max(1e-3 * abs(self.bound), 1e-3 * program.scale)
        part, limited = self.part(reduced, slack), False
        for _ in range(HALVINGS):
            if not self.is_large(part):
                break
            slack /= 2
            part = self.part(reduced, slack)
        while True:
            whole = slack >= float(reduced.max(initial=0.0)) * program.scale
            wide = slack >= WIDE * abs(self.bound)
            # Choices with alternatives left out exceed the relaxation by more than the
            # slack.
            outside = math.inf if whole else self.bound + slack
            if self.is_large(part):
                return best
            if part is None:
                best = best.better(SolverResult(None, math.inf, outside))
            else:
                found = solve_directly(part, self.gap, self.clock, self.nodes)
                limited = limited or not found.proven(self.gap)
                bound = min(found.bound, outside)
                if found.choice is not None:
                    choice = replay(part.steps, dict(found.choice))
                    best = best.better(SolverResult.of(graph, choice, bound))
                else:
                    best = best.better(SolverResult(None, math.inf, bound))
            if whole or best.proven(self.gap) or self.clock.stopped:
                return best
            if limited and best.choice is not None:
                return best
            if best.objective < self.enough:
                return best
            if wide and best.choice is not None and self.enough > -math.inf:
                return best
            slack *= 10
            if best.choice is not None:
                enough = best.objective - self.bound + ROUNDING * program.scale
                slack = min(slack, max(enough, slack / 5))
            part = self.part(reduced, slack)

    def is_large(self, part: CostGraph | None) -> bool:
        """
        Whether solving `part`, a part of the graph, would take too long. False if
        `part` is None, which means that no choice is left.
        """
        return part is not None and part.columns > self.columns

    def part(self, reduced: Costs, slack: float) -> CostGraph | None:
        """
        Returns the graph without the alternatives and pairs that have a reduced cost
        above `slack`. Returns None if no choice is left.
        """
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
        return part if reduce(part) else None


def relax(
    program: IntegerProgram, graph: CostGraph, clock: Clock
) -> tuple[ProgramSolution, list[int]]:
    """
    Solves the relaxation with all the memory rows that it needs. Returns its solution,
    which has no columns if no solution exists or none was found in time. Also returns
    the points of the added memory rows, and the points where little memory is left.
    """
    highs = Highs(program.relaxed())
    points: list[int] = []
    bound = -math.inf
    while True:
        answer = highs.run(clock)
        bound = max(bound, answer.bound)
        if answer.columns is None:
            return ProgramSolution(None, bound), points
        load = program.load(answer.columns)
        new = violated(load, graph.capacity, points)
        if not len(new):
            near = violated(load, NEAR * graph.capacity, points)
            return answer, points + near.tolist()
        points += new.tolist()
        highs.add(program.points(new))


def solve_directly(
    graph: CostGraph, gap: float, clock: Clock, nodes: int | None = None
) -> SolverResult:
    """
    Solves a reduced graph as one integer program in HiGHS. Memory rows are added as
    they are needed.
    """
    found = decided(graph)
    if found is not None:
        return found
    program = IntegerProgram(graph)
    # An integer program takes longer than all the relaxations that find the decisive
    # rows.
    relaxed, known = relax(program, graph, clock)
    least = program.real(relaxed.bound)
    absolute = gap * max(least, 0.0) / program.scale if math.isfinite(least) else 0.0
    extra = [program.points(np.array(known, np.int64))]
    bound = -math.inf
    while True:
        highs = Highs(program.linear)
        for rows in extra:
            highs.add(rows)
        answer = highs.run(clock, absolute, nodes)
        bound = max(bound, program.real(answer.bound))
        if answer.columns is None:
            return SolverResult(None, math.inf, bound)
        choice = program.choice(answer.columns)
        load = graph.load(choice)
        if not (load > graph.capacity).any():
            return SolverResult.of(graph, choice, bound)
        if clock.stopped:
            return SolverResult(None, math.inf, bound)
        new = violated(load, graph.capacity, known)
        if len(new):
            known += new.tolist()
            extra.append(program.points(new))
        else:
            # It exceeds a row within the solver's tolerance.
            point = int((load - graph.capacity).argmax())
            extra.append(program.cover(choice, point))


def _solve_with_cbc(
    graph: CostGraph, gap: float, clock: Clock, start: Mapping[int, int] | None
) -> SolverResult:
    from distir.solver.programs.cbc import run_cbc

    program = IntegerProgram(graph)
    columns = None if start is None else program.assignment(start)
    extra: list[ConstraintRows] = [program.points(np.arange(len(graph.limit)))]
    while True:
        answer = run_cbc(program.linear, extra, clock, gap, columns)
        bound = program.real(answer.bound)
        if answer.columns is None:
            return SolverResult(None, math.inf, bound)
        choice = program.choice(answer.columns)
        over = graph.load(choice) - graph.capacity
        if not (over > 0).any():
            return SolverResult.of(graph, choice, bound)
        extra.append(program.cover(choice, int(over.argmax())))
