"""The problem to be solved, and its solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Costs = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Memory:
    """
    A limit on what the chosen alternatives occupy at any moment.

    - `usages[i][a]`: bytes that node i occupies under its alternative a.
    - `intervals[i]`: the moments `[start, end)` during which it does.
    - `limit`: bytes.
    """

    usages: Sequence[Costs]
    intervals: Sequence[tuple[int, int]]
    limit: float


@dataclass(frozen=True)
class Problem:
    """
    The problem of choosing one alternative of each node so that the sum of the nodes' and
    the edges' costs is least.

    - `costs[i][a]`: the cost of node i under its alternative a; infinite if that is
      impossible.
    - `edges[i, j][a, b]`: the cost of alternatives a of node i and b of node j together; i
      < j, one matrix per pair of nodes.
    - `memory`: a limit, or None.
    """

    costs: Sequence[Costs]
    edges: Mapping[tuple[int, int], Costs] = field(
        default_factory=dict[tuple[int, int], Costs]
    )
    memory: Memory | None = None

    def cost(self, choice: Sequence[int]) -> float:
        """
        Returns the cost of a choice of one alternative per node, whatever memory it takes.
        """
        nodes = sum(
            float(costs[a]) for costs, a in zip(self.costs, choice, strict=True)
        )
        edges = sum(float(m[choice[i], choice[j]]) for (i, j), m in self.edges.items())
        return nodes + edges

    def peak(self, choice: Sequence[int]) -> float:
        """
        Returns the most bytes that a choice occupies at any moment; 0 without a limit.
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
    Returns how far an objective is above its bound, as a fraction of itself; at least 0.
    """
    if objective <= bound:
        return 0.0
    return (objective - bound) / max(abs(objective), 1e-300)


@dataclass(frozen=True)
class Solution:
    """
    The best choice found, and how good it is at least.

    - `choice`: one alternative per node.
    - `objective`: its cost; `bound`: no choice within the limit costs less.
    - `method`: the method that found it; `seconds`: how long that took.
    - `by_segments`: the choice that segments found, if the search went on from it.
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
        The distance of the objective from the bound, as a fraction of the objective; 0
        is a proof.
        """
        return relative_gap(self.objective, self.bound)
