"""
Solves a graph as an integer program.

With HiGHS the relaxation comes first: it gives a bound, and for each alternative and each
pair by how much the cost of a choice with it exceeds the bound at least. Only what exceeds
it by little is kept; the rest is reduced again and is much smaller. Its optimum is that of
the whole unless it costs more than the alternatives left out; then more are kept. Memory
rows are added at the points where a solution exceeds the limit.
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
Points at which a relaxation uses this fraction of the memory are those at which an integer
solution may exceed it.
"""

WIDE = 9e-3
"""
Where a good choice is enough, alternatives are left out that cost more than the bound by a
larger fraction of it: with them the search takes several times as long, and hardly ever
finds a better choice.
"""

SolverName = Literal["highs", "cbc"]
"""The program that is run: HiGHS in this process, or CBC through PuLP."""


def solve_integer_program(
    graph: CostGraph,
    solver: SolverName = "highs",
    *,
    clock: Clock,
    gap: float = 0.0,
    start: Mapping[int, int] | None = None,
    nodes: int | None = None,
    enough: float = -math.inf,
) -> SolverResult:
    """
    Solves a reduced graph, within a time and to a relative gap, from a start choice if one
    is given. With HiGHS, each search may also be limited to `nodes` nodes, and ends when a
    choice costs less than `enough`. After a time-out or an interruption the result is the
    best choice found.
    """
    found = decided(graph)
    if found is not None:
        return found
    if solver == "highs":
        return _Relaxed(graph, gap, clock, start, nodes, enough).run()
    return _solve_with_cbc(graph, gap, clock, start)


def decided(graph: CostGraph) -> SolverResult | None:
    """
    Returns the result if the reductions found it already: that nothing fits, or the choice
    of no nodes; None if nodes remain.
    """
    if (graph.capacity < 0).any():
        return SolverResult(None, math.inf, math.inf)
    return None if graph.costs else SolverResult({}, graph.constant, graph.constant)


class _Relaxed:
    """The relaxation, and the search among what costs little more than it."""

    def __init__(
        self,
        graph: CostGraph,
        gap: float,
        clock: Clock,
        start: Mapping[int, int] | None,
        nodes: int | None,
        enough: float,
    ):
        self.graph, self.gap, self.clock = graph, gap, clock
        self.nodes, self.enough = nodes, enough
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
        limited = False
        while True:
            whole = slack >= float(reduced.max(initial=0.0)) * program.scale
            wide = slack >= WIDE * abs(self.bound)
            # Alternatives left out cost more above the relaxation than the slack.
            outside = math.inf if whole else self.bound + slack
            part = self.part(reduced, slack)
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

    def part(self, reduced: Costs, slack: float) -> CostGraph | None:
        """
        Returns the graph without what costs more than the slack; None if nothing is left.
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
    Returns the solution of the relaxation with all the memory rows that it needs (without
    columns if it has no solution or none was found in time), the points of these rows, and
    the points at which it leaves little memory.
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
    Solves a reduced graph as one integer program in HiGHS, adding memory rows as they are
    needed.
    """
    found = decided(graph)
    if found is not None:
        return found
    program = IntegerProgram(graph)
    # An integer program takes longer than all the relaxations that say which rows decide.
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
