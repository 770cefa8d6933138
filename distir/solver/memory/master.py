"""
The two linear programs of the cutting-plane method. One program finds the multipliers
at which the lowest of several planes is highest. Its dual finds the cheapest mixture of
the planes' choices that fits on average.
"""

from __future__ import annotations

import numpy as np

from distir.solver.clock import Clock
from distir.solver.problem import Costs
from distir.solver.programs.highs import Highs, is_installed
from distir.solver.programs.program import ConstraintRows, LinearProgram


def best_multipliers(
    costs: Costs, over: Costs, highest: Costs
) -> tuple[Costs, float, Costs] | None:
    """
    Returns the multipliers m, with 0 <= m <= `highest`, that maximise the least value
    of `costs[k] + over[k] @ m` over all k. Also returns this least value, and the
    weight of each k in the solution of the dual. Returns None if HiGHS cannot solve the
    program, because the numbers differ too much in size.
    """
    planes, points = over.shape
    # Columns: the multipliers as fractions of their highest, then the value, split by sign.
    scale = max(float(np.abs(costs).max()), 1e-300)
    slopes = over * highest / scale
    rows, columns = np.nonzero(np.ones((planes, points + 2)))
    values = np.concatenate(
        [-slopes, np.ones((planes, 1)), -np.ones((planes, 1))], axis=1
    )
    program = LinearProgram(
        np.concatenate([np.zeros(points), [-1.0, 1.0]]),
        np.concatenate([np.ones(points), [np.inf, np.inf]]),
        ConstraintRows.of(
            np.full(planes, -np.inf), costs / scale, rows, columns, values.ravel()
        ),
    )
    answer = Highs(program).run(Clock())
    if answer.columns is None or answer.duals is None:
        return None
    shares = np.abs(answer.duals)
    shares /= max(float(shares.sum()), 1e-300)
    return answer.columns[:points] * highest, -answer.bound * scale, shares


def best_weights(over: Costs) -> Costs | None:
    """
    Returns the weights, non-negative and with sum 1, that maximise the least value of
    `over[k] @ weights` over all k. Returns None if HiGHS is not installed, or cannot
    solve the program because the numbers differ too much in size.
    """
    if not is_installed():
        return None
    planes, points = over.shape
    scale = max(float(np.abs(over).max()), 1e-300)
    rows, columns = np.nonzero(np.ones((planes + 1, points + 2)))
    values = np.concatenate(
        [-over / scale, np.ones((planes, 1)), -np.ones((planes, 1))], 1
    )
    values = np.concatenate([values, [[1.0] * points + [0.0, 0.0]]])
    lower = np.concatenate([np.full(planes, -np.inf), [1.0]])
    upper = np.concatenate([np.zeros(planes), [1.0]])
    program = LinearProgram(
        np.concatenate([np.zeros(points), [-1.0, 1.0]]),
        np.full(points + 2, np.inf),
        ConstraintRows.of(lower, upper, rows, columns, values.ravel()),
    )
    answer = Highs(program).run(Clock())
    return None if answer.columns is None else answer.columns[:points]
