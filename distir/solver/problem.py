"""An optimisation problem, and its solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Costs = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Memory:
    """
    A limit on the memory that the chosen alternatives occupy at any moment.

    - `usages[i][a]`: the bytes that node i occupies under its alternative a.
    - `intervals[i]`: the moments `[start, end)` during which node i occupies its bytes.
    - `limit`: the largest number of bytes that may be occupied at once.
    """

    usages: Sequence[Costs]
    intervals: Sequence[tuple[int, int]]
    limit: float


@dataclass(frozen=True)
class Problem:
    """
    The problem of choosing one alternative for each node such that the total cost of
    nodes and edges is least.

    - `costs[i][a]`: the cost of node i under its alternative a; infinite if the
      alternative is impossible.
    - `edges[i, j][a, b]`: the cost of alternative a of node i together with alternative
      b of node j, where i < j; each pair of nodes has at most one matrix.
    - `memory`: a memory limit, or None.
    """

    costs: Sequence[Costs]
    edges: Mapping[tuple[int, int], Costs] = field(
        default_factory=dict[tuple[int, int], Costs]
    )
    memory: Memory | None = None

    def cost(self, choice: Sequence[int]) -> float:
        """
        Returns the total cost of a choice of one alternative per node. The memory limit
        is ignored.
        """
        nodes = sum(
            float(costs[a]) for costs, a in zip(self.costs, choice, strict=True)
        )
        edges = sum(float(m[choice[i], choice[j]]) for (i, j), m in self.edges.items())
        return nodes + edges

    def peak(self, choice: Sequence[int]) -> float:
        """
        Returns the largest number of bytes that a choice occupies at any moment, or 0
        if the problem has no memory limit.
        """
        if self.memory is None:
            return 0.0
        end = max((end for _, end in self.memory.intervals), default=0)
        change = np.zeros(end + 1)
        for usage, (start, stop), a in zip(
            self.memory.usages, self.memory.intervals, choice, strict=True
        ):
            if start < stop:
                change[start] += usage[a]
                change[stop] -= usage[a]
        return float(np.cumsum(change).max(initial=0.0))


def relative_gap(objective: float, bound: float) -> float:
    """
    Returns the distance from `bound` up to `objective`, as a fraction of the objective.
    The result is 0 if the objective is not above the bound.
    """
    if objective <= bound:
        return 0.0
    return (objective - bound) / max(abs(objective), 1e-300)


@dataclass(frozen=True)
class Solution:
    """
    The best choice found, with a lower bound on the cost of any choice.

    - `choice`: one alternative per node.
    - `objective`: the cost of the choice; `bound`: every choice within the memory limit
      costs at least this much.
    - `method`: the method that found the choice; `seconds`: the time that the search
      took.
    - `by_segments`: the solution found first, segment by segment, if the search
      continued from there; else None.
    """

    choice: Sequence[int]
    objective: float
    bound: float
    method: str
    seconds: float
    by_segments: Sequence[int] | None = None

    @property
    def gap(self) -> float:
        """
        The distance of the objective from the bound, as a fraction of the objective. If
        it is 0, the choice is proven optimal.
        """
        return relative_gap(self.objective, self.bound)
