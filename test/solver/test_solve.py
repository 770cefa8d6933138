"""Every method finds the optimum that trying everything finds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.cases import named
from support.layered_problems import layered_problem
from support.random_problems import brute_force, random_problem
from support.thoroughness import tries

from distir.errors import DistIRError
from distir.solver import InfeasibleError, Memory, Problem, solve


def check(problem: Problem, **options) -> None:
    best = brute_force(problem)
    if not np.isfinite(best):
        with pytest.raises(InfeasibleError) as raised:
            solve(problem, **options)
        assert raised.value.proven
        return
    solution = solve(problem, **options)
    assert solution.objective == problem.cost(solution.choice)
    assert solution.objective == pytest.approx(best, rel=1e-9)
    assert solution.gap == 0
    if problem.memory is not None:
        assert problem.peak(solution.choice) <= problem.memory.limit


@pytest.mark.parametrize("memory", [False, True])
def test_random_problems(memory: bool):
    for seed in range(150):
        with named(seed):
            check(random_problem(seed, memory=memory, integer=seed % 2 == 0))


def test_elimination():
    for seed in range(60):
        with named(seed):
            check(random_problem(seed, memory=False), method="elimination")


@pytest.mark.parametrize("memory", [False, True])
def test_integer_program(memory: bool):
    for seed in range(60):
        with named(seed):
            check(random_problem(seed, memory=memory), method="integer-program")


def test_cbc():
    """Each solution starts a process."""
    for seed in range(tries(12)):
        with named(seed):
            problem = random_problem(seed, memory=True)
            check(problem, method="integer-program", solver="cbc")


def test_lagrangian_is_within_its_bound_and_rarely_above_the_optimum():
    above = 0
    for seed in range(100):
        problem = random_problem(seed, memory=True, integer=seed % 2 == 0)
        best = brute_force(problem)
        if not np.isfinite(best):
            with pytest.raises(InfeasibleError):
                solve(problem, method="lagrangian")
            continue
        solution = solve(problem, method="lagrangian")
        assert problem.memory is not None
        assert problem.peak(solution.choice) <= problem.memory.limit
        assert solution.objective == problem.cost(solution.choice)
        assert solution.bound <= best * (1 + 1e-9)
        assert solution.objective >= best * (1 - 1e-9)
        above += solution.objective > best * (1 + 1e-9)
    assert above <= 3


def test_methods_agree_on_repeated_layers():
    problem = layered_problem(3, ops=12)
    exact = solve(problem)
    assert exact.gap == 0
    program = solve(problem, method="integer-program")
    assert program.objective == exact.objective
    cbc = solve(problem, method="integer-program", solver="cbc")
    assert cbc.objective == exact.objective


def test_methods_agree_on_repeated_layers_under_a_limit():
    problem = layered_problem(3, ops=20, limit=0.9)
    free = solve(dataclasses.replace(problem, memory=None))
    exact = solve(problem, method="integer-program")
    assert exact.gap == 0
    assert exact.objective > free.objective
    priced = solve(problem, method="lagrangian")
    assert priced.bound <= exact.objective <= priced.objective
    assert priced.gap <= 0.005


@pytest.mark.slow
def test_ninety_six_layers_are_proven_optimal():
    problem = layered_problem(96)
    assert len(problem.costs) > 65_000
    assert solve(problem).gap == 0


def test_parallel_costs_are_exact_where_floats_are():
    # 2**52 and 1 need all the digits of a double.
    problem = Problem(
        [np.array([2.0**52, 2.0**52 + 1]), np.array([1.0, 0.0])],
        {(0, 1): np.array([[0.0, np.inf], [0.0, 1.0]])},
    )
    assert solve(problem).objective == 2.0**52 + 1


def test_a_seed_is_never_made_worse():
    problem = layered_problem(2, ops=8, limit=0.9)
    seed = solve(problem).choice
    again = solve(problem, seed_choice=seed, time_limit=0)
    assert again.objective == problem.cost(seed)


def test_a_limit_that_nothing_fits_names_the_largest():
    costs = [np.array([0.0, 5.0])] * 3
    usages = [np.array([9.0, 4.0]), np.array([30.0, 20.0]), np.array([8.0, 7.0])]
    memory = Memory(usages, [(0, 4), (1, 3), (3, 5)], 23.0)
    with pytest.raises(InfeasibleError, match="24 bytes") as raised:
        solve(Problem(costs, {}, memory))
    error = raised.value
    assert (error.nodes, error.peak, error.least) == ((1, 0), 24.0, 24.0)
    assert error.proven
    enough = dataclasses.replace(memory, limit=24.0)
    assert solve(Problem(costs, {}, enough)).choice == [1, 1, 0]


@pytest.mark.parametrize("seed", range(40))
def test_the_smallest_peak_is_the_smallest(seed: int):
    problem = random_problem(seed, memory=True)
    free = dataclasses.replace(problem, memory=None)
    if not np.isfinite(brute_force(free)):
        return
    assert problem.memory is not None
    memory = dataclasses.replace(problem.memory, limit=-1.0)
    with pytest.raises(InfeasibleError) as raised:
        solve(Problem(problem.costs, problem.edges, memory))
    error = raised.value
    assert error.peak is not None and error.least is not None
    fitting = [
        limit
        for limit in range(80)
        if np.isfinite(
            brute_force(
                Problem(
                    problem.costs,
                    problem.edges,
                    dataclasses.replace(memory, limit=limit),
                )
            )
        )
    ]
    assert error.least <= fitting[0] <= error.peak


def test_pairs_that_exclude_each_other():
    edges = {(0, 1): np.full((2, 2), np.inf)}
    with pytest.raises(InfeasibleError):
        solve(Problem([np.zeros(2), np.zeros(2)], edges))


def test_bad_shapes():
    with pytest.raises(DistIRError, match=r"edge \(0, 1\)"):
        solve(Problem([np.zeros(2), np.zeros(2)], {(0, 1): np.zeros((2, 3))}))
    with pytest.raises(DistIRError, match=r"edge \(1, 0\)"):
        solve(Problem([np.zeros(2), np.zeros(2)], {(1, 0): np.zeros((2, 2))}))
    with pytest.raises(DistIRError, match="not a number"):
        solve(Problem([np.array([np.nan])]))
    with pytest.raises(DistIRError, match="no solver"):
        solve(layered_problem(1, ops=4), method="integer-program", solver="x")  # type: ignore


def test_fractions_of_bytes_fill_a_limit_exactly():
    """Their sums are rounded: 0.1 + 0.2 is more than 0.3."""
    usages = [np.array([0.1, 0.0]), np.array([0.2, 0.0])]
    problem = Problem([np.array([0.0, 5.0])] * 2, {}, Memory(usages, [(0, 1)] * 2, 0.3))
    for method in ("auto", "integer-program", "lagrangian"):
        assert solve(problem, method=method).objective == 0
