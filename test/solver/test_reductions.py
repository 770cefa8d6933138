"""Reductions leave the optimum as it is, and their record leads back to it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.random_problems import brute_force, random_problem
from support.thoroughness import tries

from distir.solver import Memory, Problem
from distir.solver.graph import CostGraph, peak_points, replay
from distir.solver.reductions import reduce


def optimum(graph: CostGraph) -> tuple[float, dict[int, int]]:
    """Of a small graph, by trying everything."""
    best, chosen = np.inf, {}
    nodes = list(graph.costs)
    for choice in np.ndindex(*(len(graph.costs[i]) for i in nodes)):
        named = dict(zip(nodes, choice, strict=True))
        cost = graph.cost(named)
        if cost < best and (graph.load(named) <= graph.capacity).all():
            best, chosen = cost, named
    return best, chosen


@settings(deadline=None, max_examples=tries(150))
@given(st.integers(1000, 10**6), st.booleans(), st.booleans())
def test_the_optimum_stays(seed: int, memory: bool, integer: bool):
    problem = random_problem(seed, memory=memory, integer=integer)
    expected = brute_force(problem)
    graph = CostGraph.of(problem)
    if not reduce(graph):
        assert expected == np.inf
        return
    found, chosen = optimum(graph)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    if np.isfinite(found):
        choice = replay(graph.steps, chosen)
        every = [choice[i] for i in range(len(problem.costs))]
        np.testing.assert_allclose(problem.cost(every), expected, rtol=1e-9)
        if problem.memory is not None:
            assert problem.peak(every) <= problem.memory.limit


def test_chains_and_rings_without_memory_disappear():
    random = np.random.default_rng(0)
    count = 30
    edges = {(i, i + 1): random.random((4, 4)) for i in range(count - 1)}
    edges[0, count - 1] = random.random((4, 4))
    graph = CostGraph.of(Problem([random.random(4) for _ in range(count)], edges))
    reduce(graph)
    assert not graph.costs


def test_a_node_that_another_determines_is_merged_with_what_it_occupies():
    equal = np.where(np.eye(2, dtype=bool), 0.0, np.inf)
    usages = [np.array([4.0, 0.0]), np.array([0.0, 4.0])]
    memory = Memory(usages, [(0, 1), (2, 3)], 3.0)
    costs = [np.array([0.0, 0.0]), np.array([1.0, 0.0])]
    graph = CostGraph.of(Problem(costs, {(0, 1): equal}, memory))
    reduce(graph)
    # Either alternative occupies 4 somewhere.
    assert len(graph.costs) == 1
    (pieces,) = graph.pieces.values()
    assert pieces.usage.tolist() == [[4.0, 0.0], [0.0, 4.0]]


def test_points_that_cannot_exceed_the_limit_are_forgotten():
    usages = [np.array([0.0, 5.0]), np.array([0.0, 5.0]), np.array([0.0, 5.0])]
    costs = [np.array([1.0, 0.0])] * 3
    memory = Memory(usages, [(0, 2), (1, 3), (4, 5)], 7.0)
    graph = CostGraph.of(Problem(costs, {}, memory))
    assert len(graph.limit) == 2
    reduce(graph)
    # The third node fits anyway, and is decided; the first two do not fit together.
    assert len(graph.limit) == 1
    assert set(graph.costs) <= {0, 1}


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=8))
def test_points_are_the_largest_sets_that_live_together(drawn: list[tuple[int, int]]):
    intervals = [(start, start + length) for start, length in drawn]
    first, last, count = peak_points(np.array(intervals, np.int64).reshape(-1, 2))
    at_points = {
        frozenset(i for i in range(len(intervals)) if first[i] <= p < last[i])
        for p in range(count)
    }
    at_moments = {
        frozenset(i for i, (start, end) in enumerate(intervals) if start <= t < end)
        for t in range(20)
    }
    at_moments.discard(frozenset())
    largest = {s for s in at_moments if not any(s < other for other in at_moments)}
    assert largest <= at_points <= at_moments
