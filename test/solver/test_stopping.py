"""A time limit, an interruption and a missing solver: an answer or a clear error, always."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from support.layered_problems import layered_problem
from support.random_problems import random_problem
from support.thoroughness import each_once

from distir.errors import DistIRError
from distir.solver import InfeasibleError, Memory, Problem, Solution, solve

# The package has a function of that name.
solving = import_module("distir.solver.solve")


def check(problem: Problem, solution: Solution) -> None:
    assert solution.objective == problem.cost(solution.choice)
    assert solution.bound <= solution.objective
    assert 0 <= solution.gap < float("inf")
    assert problem.memory is not None
    assert problem.peak(solution.choice) <= problem.memory.limit


@pytest.mark.parametrize(
    ("method", "seconds"),
    each_once(["auto", "integer-program", "lagrangian"], [0.0, 1.0]),
)
def test_a_time_limit(method: str, seconds: float):
    problem = layered_problem(3, ops=20, limit=0.9)
    check(problem, solve(problem, method=method, time_limit=seconds))


def test_an_interruption_ends_the_search_with_what_it_has():
    problem = layered_problem(3, ops=20, limit=0.9)
    heard: list[str] = []

    def interrupt(text: str) -> None:
        if not heard:
            os.kill(os.getpid(), signal.SIGINT)
        heard.append(text)

    before = signal.getsignal(signal.SIGINT)
    check(problem, solve(problem, progress=interrupt))
    assert heard
    assert signal.getsignal(signal.SIGINT) == before


def test_an_interruption_of_a_solver():
    # Solved to the end, it takes ten seconds.
    problem = layered_problem(6, ops=40, limit=0.8)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    started: list[bool] = []

    def start(text: str) -> None:
        if not started:
            started.append(True)
            timer.start()

    try:
        solution = solve(problem, method="integer-program", progress=start)
    except KeyboardInterrupt:
        pytest.fail("the interruption came through")
    finally:
        timer.cancel()
    check(problem, solution)
    assert solution.gap > 0, "it was solved before the interruption came"


@pytest.mark.parametrize(
    ("module", "solver", "name"),
    [("highspy", "highs", "HiGHS"), ("pulp", "cbc", "PuLP")],
)
def test_a_solver_that_is_not_installed(monkeypatch, module: str, solver, name: str):
    monkeypatch.setitem(sys.modules, module, None)
    problem = random_problem(7, memory=True)
    with pytest.raises(DistIRError, match=f"{name} is not installed"):
        solve(problem, method="integer-program", solver=solver)


def test_an_interruption_where_nothing_fits_ends_soon(monkeypatch):
    """What is done after it has its own time."""
    problem = layered_problem(3, ops=20, limit=0.9)
    assert problem.memory is not None
    problem = replace(problem, memory=replace(problem.memory, limit=1.0))
    clocks: list[float] = []
    original = solving.smallest_peak

    def peak(graph, clock):
        clocks.append(clock.limit)
        return original(graph, clock)

    monkeypatch.setattr(solving, "smallest_peak", peak)

    def interrupt(_: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(InfeasibleError):
            solve(problem, method="lagrangian", progress=interrupt)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGINT, before)
    assert all(limit <= solving.PATIENCE for limit in clocks)


def test_cbc_says_without_highs_that_nothing_fits(monkeypatch):
    monkeypatch.setitem(sys.modules, "highspy", None)
    sizes = np.array([4.0, 3.0])
    problem = Problem([np.zeros(2)] * 2, {}, Memory([sizes] * 2, [(0, 1)] * 2, 5.0))
    with pytest.raises(InfeasibleError, match="smallest peak found is 6 bytes"):
        solve(problem, method="integer-program", solver="cbc")
