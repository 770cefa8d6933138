"""Prices for memory: multipliers, the mixture that they make fit, and staggered multipliers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.layered_problems import layered_problem
from support.thoroughness import sampled

from distir.solver.clock import Clock
from distir.solver.graph import CostGraph
from distir.solver.memory.lagrangian import Lagrangian
from distir.solver.memory.master import best_multipliers
from distir.solver.problem import Memory, Problem
from distir.solver.programs.highs import Highs
from distir.solver.programs.integer_program import solve_directly, solve_integer_program
from distir.solver.programs.program import IntegerProgram
from distir.solver.reductions import reduce
from distir.solver.result import SolverResult


def _alike(layers: int) -> Problem:
    """
    So many layers alike, each of which saves its 10 bytes for one more of cost; half of the
    memory is there.
    """
    return Problem(
        [np.array([1.0, 2.0])] * layers,
        {(i, i + 1): np.array([[0.0, 0.1], [0.1, 0.0]]) for i in range(layers - 1)},
        Memory([np.array([10.0, 0.0])] * layers, [(0, 1)] * layers, 5.0 * layers),
    )


def _climbed(problem: Problem) -> tuple[Lagrangian, dict[int, float]]:
    graph = CostGraph.of(problem)
    found = Lagrangian(graph, 0.0, Clock(), lambda _: None)
    assert found.price({})
    return found, found.climb()


@pytest.mark.parametrize("layers", [4, 16, 64])
def test_staggered_multipliers_split_layers_that_are_alike(layers: int):
    found, multipliers = _climbed(_alike(layers))
    # At one multiplier per byte all layers save or none does.
    assert found.best.objective == 2 * layers
    found.stagger(multipliers)
    # Half of them save: one change of layouts on the way.
    assert found.best.objective == pytest.approx(1.5 * layers + 0.1)
    assert found.bound <= 1.5 * layers + 0.1


def test_points_that_the_mixture_exceeds_get_multipliers():
    # Each of two nodes is too large at its own point, and the cheapest choices take turns.
    sizes = np.array([10.0, 0.0])
    memory = Memory([sizes, sizes], [(0, 1), (1, 2)], 4.0)
    problem = Problem(
        [np.array([0.0, 1.0]), np.array([0.0, 1.0])],
        {(0, 1): np.array([[5.0, 0.0], [0.0, 5.0]])},
        memory,
    )
    found, _ = _climbed(problem)
    assert sorted(found.points) == [0, 1]


def test_the_mixture_fits_on_average():
    costs = np.array([1.0, 2.0, 4.0])
    over = np.array([[3.0, -1.0], [-1.0, 3.0], [-5.0, -5.0]])
    found = best_multipliers(costs, over, np.array([100.0, 100.0]))
    assert found is not None
    multipliers, bound, shares = found
    assert shares.sum() == pytest.approx(1)
    assert (shares @ over <= 1e-9).all()
    assert bound == pytest.approx(shares @ costs)
    assert bound == pytest.approx((costs + over @ multipliers).min())


def test_repeated_layers_under_a_limit_are_nearly_solved():
    found, multipliers = _climbed(layered_problem(6, ops=12, limit=0.9))
    before = found.best.objective
    found.stagger(multipliers)
    assert found.best.objective <= before
    assert found.best.objective <= 1.05 * found.bound


def test_what_was_combined_is_not_combined_again(monkeypatch: pytest.MonkeyPatch):
    found, _ = _climbed(layered_problem(6, ops=12, limit=0.9))
    searched: list[CostGraph] = []

    def search(graph: CostGraph, **options: Any) -> SolverResult:
        searched.append(graph)
        return solve_integer_program(graph, **options)

    monkeypatch.setattr("distir.solver.memory.lagrangian.solve_integer_program", search)
    found.combined = set()
    first = found.choices
    found.combine(first, Clock())
    found.combine(first[::-1], Clock())
    assert len(searched) == 1
    some = next(iter(first[0]))
    other = {
        **first[0],
        some: next(a for a in (0, 1, 2) if a not in {c[some] for c in first}),
    }
    found.combine([*first, other], Clock())
    assert len(searched) == 2


@pytest.mark.parametrize("constant", sampled([-0.5, 0.0, 100.0], 3))
def test_a_gap_is_a_fraction_of_all_costs(
    monkeypatch: pytest.MonkeyPatch, constant: float
):
    """HiGHS does not know of the cost that the reductions took out of a graph."""
    graph = CostGraph.of(layered_problem(4, ops=6, limit=0.9))
    assert reduce(graph)
    graph.constant += constant * solve_directly(graph, 0.0, Clock()).objective
    gaps: list[float] = []
    run = Highs.run

    def recorded(self: Highs, clock: Clock, gap: float = 0.0, *rest: Any):
        gaps.append(gap)
        return run(self, clock, gap, *rest)

    monkeypatch.setattr(Highs, "run", recorded)
    best = solve_directly(graph, 0.0, Clock())
    assert not any(gaps)
    found = solve_directly(graph, 0.01, Clock())
    allowed = max(gaps) * IntegerProgram(graph).scale
    assert allowed <= 0.01 * found.objective
    assert allowed >= 0.009 * found.objective
    assert best.objective <= found.objective <= best.objective + allowed
