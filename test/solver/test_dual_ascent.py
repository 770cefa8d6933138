"""Bounds and choices by message passing, against elimination."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from support.layered_problems import layered_problem

from distir.solver.clock import Clock
from distir.solver.dual_ascent import DualAscent
from distir.solver.elimination import eliminate, plan
from distir.solver.flow import Segments
from distir.solver.graph import CostGraph, replay
from distir.solver.memory.relaxed import near_optimum, optimum
from distir.solver.problem import Costs, Memory, Problem
from distir.solver.reductions import reduce
from distir.solver.result import SolverResult
from distir.solver.solve import solve


def grid(seed: int, rows: int = 3, columns: int = 5, forbidden: float = 0.1) -> Problem:
    """Nodes of 2 to 5 alternatives in a grid with tails; some pairs are forbidden."""
    random = np.random.default_rng(seed)
    nodes = rows * columns
    sizes = random.integers(2, 6, nodes + rows)
    pairs = [(i, i + 1) for i in range(nodes) if (i + 1) % columns]
    pairs += [(i, i + columns) for i in range(nodes - columns)]
    pairs += [(row * columns, nodes + row) for row in range(rows)]
    edges: dict[tuple[int, int], Costs] = {}
    for i, j in pairs:
        matrix = random.random((sizes[i], sizes[j])) * 10
        matrix[random.random(matrix.shape) < forbidden] = math.inf
        matrix[0, 0] = 20.0
        edges[i, j] = matrix
    return Problem([random.random(n) for n in sizes], edges)


def best_of(graph: CostGraph) -> SolverResult:
    found = eliminate(graph, plan(graph), Clock())
    assert found is not None
    return found


def reduced(problem: Problem) -> CostGraph:
    graph = CostGraph.of(problem)
    assert reduce(graph)
    return graph


@pytest.mark.parametrize("seed", range(12))
def test_the_best_is_between_bound_and_choice_and_stays(seed: int) -> None:
    graph = reduced(grid(seed))
    best = best_of(graph)
    ascent = DualAscent(graph)
    core = ascent.run(Clock())
    found = ascent.result(core)
    assert found.choice is not None and found.choice.keys() == graph.costs.keys()
    assert graph.cost(found.choice) == pytest.approx(found.objective)
    assert found.bound - 1e-9 <= best.objective <= found.objective + 1e-9
    # The relaxation of a random grid is nearly tight; far from it nothing would be pruned.
    assert found.bound >= 0.9 * best.objective
    rest = ascent.remaining(found.objective)
    if reduce(rest):
        left = best_of(rest)
        assert left.choice is not None
        every = ascent.result(
            SolverResult(replay(rest.steps, dict(left.choice)), 0.0, 0.0)
        )
        assert every.choice is not None
        assert min(graph.cost(every.choice), found.objective) == pytest.approx(
            best.objective
        )


@pytest.mark.parametrize("seed", range(4))
def test_other_costs_of_nodes_begin_with_the_messages_that_are_there(seed: int) -> None:
    graph = reduced(grid(seed))
    near = near_optimum(graph, 1e-3)
    random = np.random.default_rng(seed)
    for _ in range(4):
        other = graph.copy(memory=False)
        for i, costs in other.costs.items():
            other.costs[i] = costs + 3 * random.random(len(costs))
        best = best_of(other)
        found = near(other, Clock())
        assert found.choice is not None
        assert other.cost(found.choice) == pytest.approx(found.objective)
        assert found.bound - 1e-9 <= best.objective <= found.objective + 1e-9


def test_what_elimination_is_too_slow_for_is_solved_exactly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    best = [solve(grid(seed), method="elimination").objective for seed in range(6)]
    monkeypatch.setattr("distir.solver.memory.relaxed.WORK", 300.0)
    for seed, objective in enumerate(best):
        found = solve(grid(seed))
        assert found.method == "dual ascent"
        assert found.objective == pytest.approx(objective) and found.gap == 0
        again = optimum(CostGraph.of(grid(seed)), Clock())
        assert again.objective == pytest.approx(objective)


@pytest.mark.parametrize("gap", [0.0, 1e-2])
def test_a_gap_does_not_cost_more_than_a_proof(
    monkeypatch: pytest.MonkeyPatch, gap: float
) -> None:
    """Where no integer program is needed for the optimum, none is needed for a gap."""
    monkeypatch.setattr("distir.solver.memory.relaxed.WORK", 1e4)
    monkeypatch.setattr(
        "distir.solver.memory.relaxed.solve_integer_program", not_needed
    )
    problem = layered_problem(3, ops=30, alternatives=8)
    found = solve(problem, gap=gap)
    assert found.method == "dual ascent" and found.gap <= gap


def not_needed(*_: object, **__: object) -> SolverResult:
    raise AssertionError("an integer program is solved")


def test_no_choice_is_possible() -> None:
    """A ring of which every two neighbours differ, with two alternatives for three nodes."""
    differ = np.array([[math.inf, 0.0], [0.0, math.inf]])
    three = {(0, 1): differ, (1, 2): differ, (0, 2): differ}
    four = {(i, j): differ for i in range(4) for j in range(i + 1, 4)}
    for number, edges in ((3, three), (4, four)):
        graph = CostGraph.of(Problem([np.array([1.0, 2.0])] * number, edges))
        found = optimum(graph, Clock())
        assert found.choice is None and found.infeasible


@pytest.mark.parametrize("seed", range(4))
def test_memory_has_prices_where_elimination_is_too_slow(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Level O3 goes on from where O2 ends; both are between the bound and the limit."""
    plain = grid(seed, columns=4, forbidden=0.0)
    random = np.random.default_rng(seed)
    usages = [random.integers(0, 50, len(c)).astype(float) for c in plain.costs]
    starts = random.integers(0, 6, len(usages))
    intervals = [(int(s), int(s) + 3) for s in starts]
    free = solve(plain)
    memory = Memory(usages, intervals, math.inf)
    peak = Problem(plain.costs, plain.edges, memory).peak(free.choice)
    limited = Problem(plain.costs, plain.edges, Memory(usages, intervals, 0.7 * peak))
    exact = solve(limited, method="integer-program")
    monkeypatch.setattr("distir.solver.memory.relaxed.WORK", -1.0)
    nodes = tuple(range(len(usages)))
    segments = Segments((nodes,), frozenset(), ())
    found = [solve(limited, segments=segments, level=level) for level in ("O2", "O3")]
    assert found[0].method == "dual ascent"
    for solution in found:
        assert limited.peak(solution.choice) <= 0.7 * peak
        assert solution.bound <= exact.objective * (1 + 1e-9)
        assert solution.objective >= exact.objective * (1 - 1e-9)
    assert found[1].objective <= found[0].objective


def test_integer_programs_that_would_take_long_are_left_with_a_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nothing else decides, the answer is no proof, and does not look like one."""
    relaxed = sys.modules["distir.solver.memory.relaxed"]
    monkeypatch.setattr(relaxed, "WORK", 0)  # no elimination
    graph = reduced(grid(4, rows=5, columns=8))
    best = best_of(graph.copy(memory=False))
    exact = optimum(graph.copy(memory=False), Clock())
    assert exact.objective == pytest.approx(best.objective) == exact.bound
    gaps: list[float] = []
    for columns in (0, 60, 10_000):
        monkeypatch.setattr(relaxed, "MANY_COLUMNS", columns)
        found = optimum(graph.copy(memory=False), Clock())
        assert found.choice is not None
        assert graph.cost(found.choice) == pytest.approx(found.objective)
        assert found.bound <= best.objective * (1 + 1e-9)
        assert best.objective <= found.objective * (1 + 1e-9)
        gaps.append(found.objective - found.bound)
    assert gaps[0] > 1e-6 and gaps[2] < 1e-6
    assert gaps[0] >= gaps[1] - 1e-9
