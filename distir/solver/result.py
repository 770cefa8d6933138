"""The result of solving a graph, and the error of solvers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distir.errors import DistIRError
from distir.solver.graph import CostGraph


class InfeasibleError(DistIRError):
    """
    The error that there is no possible choice, or that none was found that fits into
    memory.

    - `nodes`: the nodes that cause the error; under a memory limit, the nodes that are
      live at the peak of the choice with the smallest peak found, largest first.
    - `peak`: the smallest peak found, in bytes, or None if the memory limit is not the
      cause.
    - `least`: a lower bound, in bytes, on the peak of every choice.
    - `proven`: whether it is proven that no choice exists; otherwise none was found in
      time.
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


# Costs that differ by less than this fraction count as equal, because sums of floats
# are rounded.
ROUNDING = 1e-9


@dataclass(frozen=True)
class SolverResult:
    """
    The result of solving a graph.

    - `choice`: the alternatives of a choice that fits into memory; None if none was
      found;
    - `objective`: the cost of the choice;
    - `bound`: a lower bound on the cost of all choices; infinite if no choice exists.
    """

    choice: Mapping[int, int] | None
    objective: float
    bound: float

    @staticmethod
    def of(
        graph: CostGraph, choice: Mapping[int, int] | None, bound: float
    ) -> SolverResult:
        """
        Returns the result for `choice` with its cost in the graph. If `choice` is None,
        the cost is infinite.
        """
        objective = math.inf if choice is None else graph.cost(choice)
        return SolverResult(choice, objective, min(bound, objective))

    @property
    def infeasible(self) -> bool:
        """Whether it is proven that no choice exists."""
        return self.choice is None and self.bound == math.inf

    def proven(self, gap: float) -> bool:
        """
        Returns whether it is proven that no choice is better by more than `gap`, a
        fraction of the objective.
        """
        if self.choice is None:
            return self.infeasible
        return self.objective - self.bound <= max(gap, ROUNDING) * abs(self.objective)

    def better(self, other: SolverResult) -> SolverResult:
        """
        Returns a result with the cheaper choice and the higher bound of `self` and
        `other`.
        """
        best = self if self.objective <= other.objective else other
        bound = max(self.bound, other.bound)
        return SolverResult(best.choice, best.objective, min(bound, best.objective))


def trivial_bound(graph: CostGraph) -> float:
    """
    Returns a simple lower bound on the cost of a graph: the sum of the least entries of
    all nodes and edges.
    """
    nodes = sum(float(costs.min()) for costs in graph.costs.values())
    return graph.constant + nodes + sum(float(m.min()) for _, _, m in graph.edges())
