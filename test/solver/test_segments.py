"""Level O2: segments between critical nodes, and what it may lose."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.layered_problems import layered_problem
from support.random_problems import brute_force, random_problem
from support.thoroughness import each_once, tries

from distir.solver import InfeasibleError, Problem, solve
from distir.solver.clock import Clock
from distir.solver.flow import Flow
from distir.solver.graph import CostGraph
from distir.solver.reductions import reduce
from distir.solver.segments import choose
from distir.solver.solve import SEGMENTS_GAP


def flow_along(problem: Problem, seed: int) -> Flow:
    """Values go from earlier nodes to later ones; some nodes compute much."""
    users: list[set[int]] = [set() for _ in problem.costs]
    for i, j in problem.edges:
        users[i].add(j)
    random = np.random.default_rng(seed)
    drawn = random.random(len(users)) < 0.5
    return Flow(users, frozenset(np.flatnonzero(drawn).tolist()))


@settings(deadline=None, max_examples=tries(300))
@given(st.integers(0, 10**6), st.booleans())
def test_never_below_the_optimum_and_never_above_the_limit(seed: int, memory: bool):
    problem = random_problem(seed, memory=memory, integer=seed % 2 == 0)
    best = brute_force(problem)
    segments = flow_along(problem, seed).segments()
    if not np.isfinite(best):
        with pytest.raises(InfeasibleError):
            solve(problem, segments=segments, level="O2")
        return
    solution = solve(problem, segments=segments, level="O2")
    assert solution.objective == problem.cost(solution.choice)
    assert solution.bound <= best * (1 + 1e-9) <= solution.objective * (1 + 2e-9)
    if problem.memory is not None:
        assert problem.peak(solution.choice) <= problem.memory.limit


@settings(deadline=None, max_examples=tries(200))
@given(st.integers(0, 10**6))
def test_unreduced_problems(seed: int):
    problem = random_problem(seed, memory=False)
    best = brute_force(problem)
    segments = flow_along(problem, seed).segments()
    choice = choose(CostGraph.of(problem), Clock(), segments)
    if choice is not None:
        cost = problem.cost([choice[i] for i in range(len(problem.costs))])
        assert cost >= best * (1 - 1e-9)
        if len(segments.groups) == 1:
            assert cost == pytest.approx(best)


def test_a_chain_is_exact():
    """Of critical nodes only: histories are what dynamic programming remembers."""
    random = np.random.default_rng(1)
    edges = {(i, i + 1): random.random((3, 3)) for i in range(11)}
    problem = Problem([random.random(3) for _ in range(12)], edges)
    segments = Flow(
        [[i + 1] for i in range(11)] + [[]], frozenset(range(12))
    ).segments()
    assert len(segments.pivots) == 12
    choice = choose(CostGraph.of(problem), Clock(), segments)
    assert choice is not None
    found = problem.cost([choice[i] for i in range(12)])
    assert found == pytest.approx(solve(problem).objective)


def test_critical_nodes_are_on_all_longest_paths():
    r"""
    0 - 1 - 2 ------- 6 - 7     1, 3, 4 and 6 compute much; 3 and 4 are on longest paths, but
         \- 3 - 5 ---/          neither is before or after the other.
          \ 4 - 8 --/
    """
    users = [[1], [2, 3, 4], [6], [5], [8], [6], [7], [], [6]]
    segments = Flow(users, frozenset({1, 3, 4, 6})).segments()
    assert segments.critical == {1, 3, 4, 6}
    assert segments.pivots == [1, 6]
    assert [set(group) for group in segments.groups] == [
        {6, 7},
        {1, 2, 3, 4, 5, 8},
        {0},
    ]


def test_the_backward_part_of_a_layer_is_in_its_segment():
    """
    Forward 0 - 1 - 2 - 3, then back 4 - 5 - 6, each reading what the forward node across made.
    """
    users = [[1], [2, 6], [3, 5], [4], [5], [6], []]
    segments = Flow(users, frozenset({1, 2, 5, 6})).segments()
    assert segments.pivots == [1, 2, 5, 6]
    # Without a second chain everything is in one line; weight gradients make the backward
    # nodes incomparable.
    users = [[1], [2, 6, 8], [3, 5, 7], [4], [5, 7], [6, 8], [], [], []]
    segments = Flow(users, frozenset({1, 2, 5, 6, 7, 8})).segments()
    assert segments.pivots == [1, 2]
    assert segments.critical == {1, 2, 5, 6, 8}
    assert [set(group) for group in segments.groups] == [
        {2, 3, 4, 5, 7},
        {1, 6, 8},
        {0},
    ]


def test_circles_are_opened():
    segments = Flow([[1], [2], [0, 3], []], frozenset({1})).segments()
    assert segments.pivots == [1]
    assert sorted(i for group in segments.groups for i in group) == [0, 1, 2, 3]


@settings(deadline=None, max_examples=tries(300))
@given(st.integers(0, 10**6))
def test_cones_are_folded(seed: int):
    """
    A cone: a node with several inputs or several users, and the chains of others that lead to
    it. They are folded into their roots, and the optimum stays (Rhino section 4.3.2).
    """
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 9))
    users: list[set[int]] = [set() for _ in range(count)]
    for j in range(1, count):
        for i in random.choice(j, min(j, int(random.integers(1, 3))), replace=False):
            users[i].add(j)
    sizes = random.integers(2, 4, count)
    edges = {
        (i, j): random.random((sizes[i], sizes[j]))
        for i in range(count)
        for j in users[i]
    }
    problem = Problem([random.random(size) for size in sizes], edges)
    inputs = np.bincount([j for around in users for j in around], minlength=count)
    roots = {i for i in range(count) if inputs[i] > 1 or len(users[i]) > 1}
    graph = CostGraph.of(problem)
    reduce(graph)
    assert set(graph.costs) <= roots
    assert solve(problem).objective == pytest.approx(brute_force(problem))


@pytest.mark.parametrize("limit", [None, 0.9])
def test_repeated_layers(limit: float | None):
    problem = layered_problem(3, ops=20, limit=limit)
    exact = solve(problem, gap=1e-3)
    solution = solve(problem, segments=flow_along(problem, 0).segments(), level="O2")
    assert solution.method == "segments"
    assert solution.objective <= 1.1 * exact.objective
    if problem.memory is not None:
        assert problem.peak(solution.choice) <= problem.memory.limit


@pytest.mark.parametrize(
    ("limit", "is_eliminated"), each_once([0.95, 0.85], [True, False])
)
def test_prices_of_the_whole_begin_where_segments_end(
    monkeypatch: pytest.MonkeyPatch, limit: float, is_eliminated: bool
):
    if not is_eliminated:  # but found by dual ascent
        monkeypatch.setattr(sys.modules["distir.solver.solve"], "PASS_WORK", -1.0)
    problem = layered_problem(3, ops=20, limit=limit)
    segments = flow_along(problem, 0).segments()
    quick = solve(problem, segments=segments, level="O2", gap=1e-3)
    assert quick.by_segments is None
    whole = solve(problem, segments=segments, method="lagrangian", gap=1e-3)
    first = whole.by_segments
    assert first is not None and problem.memory is not None
    assert problem.peak(first) <= problem.memory.limit
    assert problem.cost(first) == pytest.approx(quick.objective, rel=SEGMENTS_GAP)
    assert whole.objective <= min(quick.objective, problem.cost(first))
    assert whole.bound <= whole.objective
    alone = solve(problem, method="lagrangian", gap=1e-3)
    assert alone.bound <= whole.objective and whole.bound <= alone.objective


@settings(deadline=None, max_examples=tries(100))
@given(st.integers(0, 10**6))
def test_a_limit_that_is_said_to_bind(seed: int):
    """It only says where not to look: the answer is right if the limit does not bind."""
    problem = random_problem(seed, memory=True, integer=True)
    best = brute_force(problem)
    if np.isfinite(best):
        assert solve(problem, is_binding=True).objective == best
