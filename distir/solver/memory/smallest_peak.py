"""
Finds the smallest memory peak of any choice, which is reported when no choice fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from distir.solver.clock import Clock
from distir.solver.graph import CostGraph
from distir.solver.memory.master import best_weights
from distir.solver.memory.relaxed import optimum
from distir.solver.programs.program import violated

PASSES = 25

IDLE = 5
"""
The number of passes without progress after which the search ends, if it is proven that
no choice fits.
"""


@dataclass(frozen=True)
class SmallestPeak:
    """
    The choice with the smallest memory peak that was found.

    - `over`: the number of bytes by which the choice exceeds the capacity at the point
      in time `point`; the choice fits if the number is 0 or less;
    - `least`: a lower bound on `over` for every choice.
    """

    choice: Mapping[int, int]
    over: float
    point: int
    least: float


def smallest_peak(graph: CostGraph, clock: Clock) -> SmallestPeak | None:
    """
    Returns the choice with the smallest memory peak that the search finds, with a
    bound. Returns None if the time is over before there is a choice.

    Points get weights that sum to 1. The weighted sum of the bytes by which a choice
    exceeds the capacities is at most its peak, so the least weighted sum of all choices
    bounds all peaks. Cutting planes find weights with a high bound. The search ends as
    soon as a choice fits, or after a fixed number of passes. It ends earlier if the
    lower bound proves that no choice fits and several passes made no progress.
    """
    capacity = graph.capacity
    points: list[int] = [int(capacity.argmin())]
    weights = np.ones(1)
    planes: list[np.ndarray] = []
    best: tuple[float, int, Mapping[int, int]] | None = None
    least = -math.inf
    idle = 0
    for _ in range(PASSES):
        free = graph.copy(memory=False)
        free.constant = 0.0
        for i, costs in free.costs.items():
            free.costs[i] = np.zeros(len(costs))
        for i, j, matrix in list(free.edges()):
            forbidden = np.where(np.isinf(matrix), np.inf, 0.0)
            free.near[i][j], free.near[j][i] = forbidden, forbidden.T
        paid = np.zeros(len(capacity) + 1)
        paid[np.array(points) + 1] = weights
        paid = np.cumsum(paid)
        for i, pieces in graph.pieces.items():
            free.costs[i] = (paid[pieces.last] - paid[pieces.first]) @ pieces.usage
        answer = optimum(free, clock)
        before = least, best and best[0]
        least = max(least, answer.bound - float(weights @ capacity[points]))
        if answer.choice is None:
            break
        over = graph.load(answer.choice) - capacity
        planes.append(over)
        if best is None or over.max() < best[0]:
            best = float(over.max()), int(over.argmax()), answer.choice
        if best[0] <= 0 or best[0] - least <= 1e-9 * abs(best[0]) or clock.stopped:
            break
        changed = least - before[0] > 1e-6 * abs(least) or best[0] != before[1]
        idle = 0 if changed else idle + 1
        if least > 0 and idle >= IDLE:
            break
        points += violated(over, np.zeros(len(over)), points)[:4].tolist()
        found = best_weights(np.array([plane[points] for plane in planes]))
        if found is None:
            break
        weights = found
    if best is None:
        return None
    return SmallestPeak(best[2], best[0], best[1], min(least, best[0]))
