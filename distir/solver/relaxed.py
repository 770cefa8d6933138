"""The optimum of a graph whose memory limit is left out, by elimination where it fits."""

from __future__ import annotations

import math
from collections.abc import Callable

from distir.solver.clock import Clock
from distir.solver.elimination import EliminationOrder, eliminate, plan
from distir.solver.found import SolverResult
from distir.solver.graph import CostGraph, replay
from distir.solver.integer_program import solve_integer_program
from distir.solver.reductions import reduce

Optimum = Callable[[CostGraph, Clock], SolverResult]
"""Finds the best choice of a graph without memory, or a good one; the graph loses its nodes."""

# Additions and comparisons that elimination may take, two or three seconds (an integer program is
# faster than more of them), and entries of tables.
WORK = 5e8
ENTRIES = 3e8


def fits(order: EliminationOrder) -> bool:
    """Whether a plan's tables fit in memory and in some seconds."""
    return order.entries <= ENTRIES and order.work <= WORK


def optimum(graph: CostGraph, clock: Clock) -> SolverResult:
    """The best choice of a graph without memory; it loses its nodes."""
    if not reduce(graph):
        return SolverResult(None, math.inf, math.inf)
    order = plan(graph, WORK)
    found = eliminate(graph, order, clock) if fits(order) else None
    if found is None:
        found = solve_integer_program(graph, clock=clock)
    if found.choice is None:
        return found
    return SolverResult(
        replay(graph.steps, dict(found.choice)), found.objective, found.bound
    )
