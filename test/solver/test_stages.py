"""Divisions into stages are the best ones: compared with all that there are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import inf
from random import Random

import pytest
from support.thoroughness import tries

from distir.errors import DistIRError
from distir.solver.stages import (
    SharedTensor,
    StageDivision,
    StageMemory,
    StageProblem,
    balance,
    cheapest,
)
from distir.solver.stages.integer_program import stage_bounds

METHODS = ("auto", "integer-program")


def divisions(problem: StageProblem, cap: float) -> Iterator[list[int]]:
    """Every division that is allowed under a load cap, by trying all."""
    before = [
        [i for i, j in problem.edges if j == node] for node in range(problem.nodes)
    ]
    stages: list[int] = []
    loads = [0.0] * problem.stages

    def extended(node: int) -> Iterator[list[int]]:
        if node == problem.nodes:
            if problem.allows(stages, cap):
                yield list(stages)
            return
        first = max((stages[i] for i in before[node]), default=0)
        for stage in range(first, problem.stages):
            if loads[stage] + problem.loads[node] <= cap:
                stages.append(stage)
                loads[stage] += problem.loads[node]
                yield from extended(node + 1)
                loads[stage] -= problem.loads[node]
                stages.pop()

    return extended(0)


def graph(rng: Random, nodes: int, density: float, stages: int) -> StageProblem:
    """A random graph with gradients, and often with few layers and little memory."""
    edges = [p for p in combinations(range(nodes), 2) if rng.random() < density]
    tensors: list[SharedTensor] = []
    for node in range(nodes):
        consumers = [j for i, j in edges if i == node]
        if consumers:
            tensors.append(SharedTensor(node, tuple(consumers), rng.randint(0, 9)))
        tensors += [
            SharedTensor(c, (node,), rng.randint(0, 9))
            for c in consumers
            if rng.random() < 0.6
        ]
    layers, memory = None, None
    if rng.random() < 0.4:
        layers = rng.sample(range(nodes), rng.randint(stages, nodes))
    if rng.random() < 0.4:
        memory = StageMemory(
            fixed=[rng.randint(0, 9) for _ in range(nodes)],
            kept=[rng.randint(0, 3) for _ in range(nodes)],
            in_flight=[stages - s for s in range(stages)],
            limit=rng.randint(6, 8) * nodes,
        )
    loads = [rng.randint(0, 9) for _ in range(nodes)]
    return StageProblem(loads, edges, tensors, stages, layers, memory)


def sparse_graph(rng: Random) -> StageProblem:
    nodes = rng.randint(2, 9)
    return graph(rng, nodes, 0.6 * rng.random(), rng.randint(1, min(4, nodes)))


def large_graph(rng: Random) -> StageProblem:
    return graph(rng, rng.randint(13, 16), 0.3, rng.randint(2, 4))


def least(search: object, *arguments: object) -> float:
    """The objective of a division; infinite where there is none."""
    try:
        found = search(*arguments)  # type: ignore[operator]
    except DistIRError:
        return inf
    # HiGHS keeps constraints to 1e-6, so that a bound may be less by some of these.
    assert isinstance(found, StageDivision) and found.gap < 1e-5
    return found.objective


@pytest.mark.parametrize(
    ("make", "seeds"),
    [
        (sparse_graph, range(tries(80))),
        (large_graph, range(80, 80 + tries(10))),
        pytest.param(sparse_graph, range(100, 400), marks=pytest.mark.slow),
        pytest.param(large_graph, range(400, 480), marks=pytest.mark.slow),
    ],
)
def test_all_divisions_of_random_graphs(make: object, seeds: range) -> None:
    """Communication under a cap and the busiest stage are least, and bounds hold."""
    impossible = 0
    for seed in seeds:
        rng = Random(seed)
        problem = make(rng)  # type: ignore[operator]
        assert isinstance(problem, StageProblem)
        share = max(*problem.loads, sum(problem.loads) / problem.stages)
        cap = share * rng.choice([1, 1.1, 1.3, 1.6])
        allowed = list(divisions(problem, cap))
        communication = min(map(problem.communication, allowed), default=inf)
        busiest = min(map(problem.bottleneck, allowed), default=inf)
        low, high = stage_bounds(problem, cap)
        for stages in allowed:
            assert all(a <= s <= b for a, s, b in zip(low, stages, high, strict=True))
        for method in METHODS:
            assert least(cheapest, problem, cap, method) == communication, seed
            if allowed:
                found = least(balance, problem, method)
                assert found == pytest.approx(busiest, rel=1e-6), seed
        impossible += not allowed
    assert impossible < len(seeds) / 2


def test_stretches_of_random_graphs() -> None:
    """`in-order` finds the best of the divisions into stretches of the order."""
    worse = 0
    for seed in range(100):
        rng = Random(seed)
        problem = sparse_graph(rng)
        cap = 1.3 * max(*problem.loads, sum(problem.loads) / problem.stages)
        stretches = [
            [sum(node >= cut for cut in cuts) for node in range(problem.nodes)]
            for cuts in combinations(range(1, problem.nodes), problem.stages - 1)
        ]
        costs = [problem.communication(s) for s in stretches if problem.allows(s, cap)]
        try:
            found = cheapest(problem, cap, "in-order").objective
        except DistIRError:
            found = inf
        assert found == min(costs, default=inf), seed
        loads = [problem.bottleneck(s) for s in stretches if problem.allows(s)]
        if loads:
            assert balance(problem, "in-order").bottleneck == pytest.approx(min(loads))
        worse += found > least(cheapest, problem, cap)
    assert worse  # so that the other method has a purpose


def test_a_tensor_is_charged_once_for_each_stage() -> None:
    """A skip from the first node to all others, the last two on the same stage."""
    chain = [(0, 1), (1, 2), (2, 3)]
    skip = SharedTensor(0, (1, 2, 3), 5.0)
    problem = StageProblem([2, 2, 1, 1], chain, [skip], 3)
    found = cheapest(problem, 2)
    assert found.stages == [0, 1, 2, 2]
    assert found.communication == 10.0
    # Straight from the first stage to the last: the one between does not pay for it.
    far = StageProblem([2, 2, 2], [(0, 1), (1, 2)], [SharedTensor(0, (2,), 5.0)], 3)
    assert cheapest(far, 2).communication == 5.0


def towers(length: int) -> StageProblem:
    """Two towers side by side; the order of the nodes alternates between them."""
    nodes = 2 * length
    edges = [(i, i + 2) for i in range(nodes - 2)]
    tensors = [SharedTensor(i, (j,), 1.0) for i, j in edges]
    return StageProblem([1.0] * nodes, edges, tensors, 2)


def test_branches_side_by_side() -> None:
    """No cut through both towers is as good as one tower on each stage."""
    problem = towers(5)
    assert cheapest(problem, 5, "in-order").communication == 2
    found = cheapest(problem, 5)
    assert found.communication == 0
    assert found.method == "integer-program"
    assert sorted(found.stages) == [0] * 5 + [1] * 5


def test_one_order_needs_no_integer_program() -> None:
    chain = StageProblem([1.0] * 40, [(i, i + 1) for i in range(39)], [], 4)
    assert balance(chain).gap == 0
    assert balance(chain).method == "in-order"
    assert balance(chain).bottleneck == 10


def test_one_order_is_one_for_all_divisions() -> None:
    """Branches before the first layer and after the last do not count, others do."""
    with_branches = 0
    for seed in range(2000):
        problem = graph(Random(seed), 6, 0.6, 2)
        if not problem.has_one_order:
            continue
        assert all(stages == sorted(stages) for stages in divisions(problem, inf))
        chain = {(i, i + 1) for i in range(5)}
        with_branches += not chain <= set(problem.edges)
    assert with_branches >= 10
    tower = StageProblem(
        [1.0] * 7, [(0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (5, 6)], [], 2, [2, 3]
    )
    assert tower.has_one_order
    assert not towers(5).has_one_order


def test_without_time_the_division_in_order_is_given_with_its_gap() -> None:
    found = cheapest(towers(60), 62, time_limit=0.0)
    assert found.communication <= 2
    assert found.bound <= found.objective


def test_a_known_division_is_found_without_time() -> None:
    """No cut in order is as balanced as the first node with the last one."""
    problem = StageProblem([3.0, 2.0, 2.0, 1.0], [(0, 3), (1, 2)], [], 2)
    known = balance(problem)
    assert (known.bottleneck, known.method) == (4.0, "integer-program")
    with pytest.raises(DistIRError, match="no division was found"):
        cheapest(problem, 4, "in-order")
    found = cheapest(problem, 4, "in-order", known=known)
    assert found.stages == known.stages
    assert found.method == "integer-program"


def test_memory_limits_what_is_in_flight() -> None:
    """The first stage keeps twice as many micro-batches, so it gets fewer nodes."""
    edges = [(i, i + 1) for i in range(5)]
    memory = StageMemory([0.0] * 6, [1.0] * 6, in_flight=[2, 1], limit=4)
    problem = StageProblem([1.0] * 6, edges, [], 2, memory=memory)
    for method in ("in-order", "integer-program"):
        assert balance(problem, method).stages == [0, 0, 1, 1, 1, 1]
    assert problem.stage_memory([0, 0, 1, 1, 1, 1]).tolist() == [4, 4]


@pytest.mark.parametrize("method", ["in-order", "integer-program", "auto"])
def test_what_is_impossible(method: str) -> None:
    problem = StageProblem([1.0, 5.0, 1.0], [(0, 1), (1, 2)], [], 2)
    with pytest.raises(
        DistIRError, match=r"2 stages of at most 4 s .* 5 s of it in one"
    ):
        cheapest(problem, 4, method)
    memory = StageMemory([9.0] * 3, [0.0] * 3, [1, 1], limit=10)
    full = StageProblem([1.0] * 3, [], [], 2, memory=memory)
    with pytest.raises(DistIRError, match="at most 10 bytes of memory"):
        balance(full, method)


def test_bad_questions() -> None:
    with pytest.raises(DistIRError, match="3 were asked for, but there are 2 layers"):
        StageProblem([1.0] * 4, [], [], 3, layers=[0, 2])
    with pytest.raises(DistIRError, match="no method 'magic'; choose one of auto"):
        balance(StageProblem([1.0], [], [], 1), "magic")
