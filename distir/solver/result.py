"""The result of a method for a graph, and the failures of solvers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distir.errors import DistIRError
from distir.solver.graph import CostGraph


class InfeasibleError(DistIRError):
    """
    Raised if no choice is possible, or none was found that fits in memory.

    - `nodes`: those that are to blame; under a memory limit those that occupy the most at
      the peak of the smallest choice found, largest first.
    - `peak`: the smallest peak found, in bytes; None if the limit is not to blame.
    - `least`: no choice has a smaller peak than this.
    - `proven`: whether there is no choice; otherwise none was found in the time.
    """

    def __init__(
        self,
        message: str,
        nodes: Sequence[int],
        peak: float | None = None,
        least: float | None = None,
        proven: bool = True,
    ):
        super().__init__(message)
        self.nodes = tuple(nodes)
        self.peak = peak
        self.least = least
        self.proven = proven


# Costs that differ by less than this fraction count as equal, as sums of floats are
# rounded.
ROUNDING = 1e-9


@dataclass(frozen=True)
class SolverResult:
    """
    A choice of the nodes of a graph that fits in memory, or None; its cost; and a lower
    bound of the cost of all choices, which is infinite if there is none.
    """

    choice: Mapping[int, int] | None
    objective: float
    bound: float

    @staticmethod
    def of(
        graph: CostGraph, choice: Mapping[int, int] | None, bound: float
    ) -> SolverResult:
        """Returns the result of a choice, with its cost in the graph, or of None."""
        objective = math.inf if choice is None else graph.cost(choice)
        return SolverResult(choice, objective, min(bound, objective))

    @property
    def infeasible(self) -> bool:
        """Whether it is proven that there is no choice."""
        return self.choice is None and self.bound == math.inf

    def proven(self, gap: float) -> bool:
        """Whether no choice is better by more than the gap, a fraction of the objective."""
        if self.choice is None:
            return self.infeasible
        return self.objective - self.bound <= max(gap, ROUNDING) * abs(self.objective)

    def better(self, other: SolverResult) -> SolverResult:
        """Returns the cheaper choice and the higher bound of two results."""
        best = self if self.objective <= other.objective else other
        bound = max(self.bound, other.bound)
        return SolverResult(best.choice, best.objective, min(bound, best.objective))


def trivial_bound(graph: CostGraph) -> float:
    """Returns the sum of the cheapest entries of every node and edge."""
    nodes = sum(float(costs.min()) for costs in graph.costs.values())
    return graph.constant + nodes + sum(float(m.min()) for _, _, m in graph.edges())
