"""
Solves a graph without its memory limit. Elimination is used if the tables are small
enough, and dual ascent otherwise. The alternatives that dual ascent does not rule out
are then solved by elimination or an integer program.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from distir.solver.clock import Clock
from distir.solver.dual_ascent import PROVING_STEP, DualAscent
from distir.solver.elimination import EliminationOrder, eliminate, plan
from distir.solver.graph import CostGraph, replay
from distir.solver.programs.integer_program import (
    MANY_COLUMNS,
    solve_integer_program,
)
from distir.solver.reductions import reduce
from distir.solver.result import SolverResult

Optimum = Callable[[CostGraph, Clock], SolverResult]
"""
A function that returns the best choice of a graph without memory limit, or a good one.
It may remove nodes from the graph.
"""

# The most additions and comparisons of an elimination (two or three seconds; above this
# an integer program is faster), and the most entries of its tables.
WORK = 5e8
ENTRIES = 3e8


def fits(order: EliminationOrder) -> bool:
    """
    Whether elimination in this order takes a few seconds at most and its tables fit
    into memory.
    """
    return order.entries <= ENTRIES and order.work <= WORK


def optimum(graph: CostGraph, clock: Clock, gap: float = 0.0) -> SolverResult:
    """
    Returns the best choice of a graph without its memory limit, or a choice within the
    relative gap `gap`. The gap stays larger if only an integer program that takes
    minutes (more than `MANY_COLUMNS` columns) could close it. The nodes of `graph` are
    removed.
    """
    if not reduce(graph):
        return SolverResult(None, math.inf, math.inf)
    found = _eliminated(graph, clock)
    if found is None:
        ascent = DualAscent(graph)
        # A bound that stalls early leaves so much to the methods below that these take
        # longer than a proof without any gap.
        found = ascent.run(clock, gap, PROVING_STEP)
        if not (found.proven(gap) or found.infeasible or clock.stopped):
            found = found.better(_rest(ascent, clock, gap))
        found = ascent.result(found)
    if found.choice is None:
        return found
    return SolverResult(
        replay(graph.steps, dict(found.choice)), found.objective, found.bound
    )


def _rest(ascent: DualAscent, clock: Clock, gap: float) -> SolverResult:
    """
    Returns the best choice among the alternatives that a run of dual ascent leaves. If
    the run found no choice near its bound, first looks for an optimum near the bound,
    where few alternatives are left.
    """
    best = ascent.best
    found = unknown = SolverResult(None, math.inf, -math.inf)
    near = min(best.objective, best.bound + PROVING_STEP * abs(best.bound))
    for limit in sorted({near, best.objective}):
        core = ascent.remaining(limit)
        if not reduce(core):
            found = unknown
            continue
        found = _eliminated(core, clock) or solve_integer_program(
            core, clock=clock, gap=gap, columns=MANY_COLUMNS
        )
        if found.choice is not None:
            choice = replay(core.steps, dict(found.choice))
            # A choice with one of the other alternatives costs more than the limit.
            bound = min(found.bound, limit)
            found = SolverResult(choice, found.objective, bound)
        if found.objective <= limit or clock.stopped:
            break
    return found


def near_optimum(graph: CostGraph, gap: float) -> Optimum:
    """
    Returns a function that solves a graph without its memory limit. The result of the
    function has a lower bound, and a gap of about `gap`. Between its calls, only the
    costs of nodes may change. The graph must be reduced.
    """
    ascent = DualAscent(graph.copy(memory=False))

    def near(graph: CostGraph, clock: Clock) -> SolverResult:
        ascent.costs = graph.costs
        return ascent.result(ascent.run(clock, gap))

    return near


def _eliminated(graph: CostGraph, clock: Clock) -> SolverResult | None:
    """
    Returns the optimum by elimination, or None if elimination would take too long.
    """
    order = plan(graph, WORK)
    return eliminate(graph, order, clock) if fits(order) else None
