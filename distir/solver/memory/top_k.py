"""
Rhino's rule for a memory limit (section 4.4): as a few large tensors take most of the
memory, the largest k of them are not allowed to be whole, for as small a k as suffices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from distir.solver.clock import Clock
from distir.solver.graph import CostGraph
from distir.solver.memory.relaxed import Optimum


def forbid_largest(
    graph: CostGraph, clock: Clock, optimum: Optimum
) -> Mapping[int, int] | None:
    """
    Forbids the k nodes that can occupy the most the alternatives in which they do, and
    solves the rest without a limit, for the least k that fits in memory. Returns the
    choice; None if there is none, or no time to find it. `optimum` solves a graph, which
    loses its nodes.
    """
    sizes = {i: pieces.usage.max(axis=0) for i, pieces in graph.pieces.items()}
    largest = sorted(sizes, key=lambda i: (-float(sizes[i].max()), i))
    # A node that always occupies the same has nothing to lose.
    largest = [i for i in largest if np.ptp(sizes[i])]
    best: Mapping[int, int] | None = None
    least, most = 1, len(largest)
    while least <= most and not clock.stopped:
        k = most if best is None else (least + most) // 2
        free = graph.copy(memory=False)
        for i in largest[:k]:
            whole = sizes[i] == sizes[i].max()
            free.costs[i] = np.where(whole, math.inf, free.costs[i])
        choice = optimum(free, clock).choice
        if choice is not None and not (graph.load(choice) > graph.capacity).any():
            best, most = choice, k - 1
        elif best is None:
            return None
        else:
            least = k + 1
    return best
