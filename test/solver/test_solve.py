"""Every method finds the optimum that trying everything finds."""

from __future__ import annotations

import numpy as np
import pytest
from random_problems import brute_force, random_problem

from distir.solver import InfeasibleError, Problem, solve


def check(problem: Problem, **options) -> None:
    best = brute_force(problem)
    if not np.isfinite(best):
        with pytest.raises(InfeasibleError):
            solve(problem, **options)
        return
    solution = solve(problem, **options)
    assert solution.objective == problem.cost(solution.choice)
    assert solution.objective == pytest.approx(best, rel=1e-9)
    assert solution.gap == 0
    if problem.memory is not None:
        assert problem.peak(solution.choice) <= problem.memory.limit


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("seed", range(100))
def test_random_problems(seed: int, memory: bool):
    check(random_problem(seed, memory=memory, integer=seed % 2 == 0))


@pytest.mark.parametrize("seed", range(50))
def test_elimination(seed: int):
    check(random_problem(seed, memory=False), method="elimination")


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_integer_program(seed: int, memory: bool):
    check(random_problem(seed, memory=memory), method="integer-program")


@pytest.mark.parametrize("seed", range(5))
def test_cbc(seed: int):
    check(random_problem(seed, memory=True), method="integer-program", solver="cbc")
