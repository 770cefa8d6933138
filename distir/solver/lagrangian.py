"""
A memory limit as a price: what is occupied at a point costs its multiplier per byte.

At given multipliers the problem without a limit has a cheapest choice, and its price less that
of the capacity is a bound. The best multipliers come from cutting planes: each choice that
was priced once is a plane above the bound as a function of the multipliers, and the next
multipliers are where the lowest of the planes is highest. Points get a multiplier when a
choice exceeds them.

Choices at different multipliers differ in parts, and where one saves memory another does not
have to: the answer is the best combination of their alternatives, an integer program that is
small because nearly all nodes agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from distir.solver.clock import Clock
from distir.solver.failures import InfeasibleError
from distir.solver.found import ROUNDING, Found
from distir.solver.graph import Graph, Table, replay
from distir.solver.integer_program import solve_integer_program
from distir.solver.master import best_multipliers
from distir.solver.problem import Costs
from distir.solver.program import violated
from distir.solver.reductions import reduce
from distir.solver.relaxed import optimum

PASSES = 60


@dataclass(frozen=True)
class Priced:
    """A choice that was cheapest at some multipliers, its cost, and what it occupies."""

    choice: Mapping[int, int]
    cost: float
    over: Costs


class Lagrangian:
    """
    - `points`: those that have a multiplier.
    - `optimum`: what finds the cheapest choice at some multipliers. If it only finds good ones,
      there is no bound.
    - `bound`: the highest found; `dearest`: no choice costs more; `best`: the cheapest choice that fits.
    """

    def __init__(
        self,
        graph: Graph,
        gap: float,
        clock: Clock,
        progress: Callable[[str], None],
        start: Mapping[int, int] | None = None,
        optimum: Callable[[Graph, Clock], Found] = optimum,
    ):
        self.optimum = optimum
        self.graph, self.gap, self.clock, self.progress = graph, gap, clock, progress
        self.priced: list[Priced] = []
        self.points: list[int] = []
        self.highest: list[float] = []
        self.bound = -math.inf
        self.dearest = dearest(graph) * (1 + 1e-6)
        self.best = Found.of(graph, start, -math.inf)

    def run(self) -> Found:
        """The dual, then combinations of its choices until the gap or the time is reached."""
        if not self.price({}):
            return self.result()
        multipliers = self.climb()
        for factor in (1.0, 1.2, 0.8, 2.0, 0.5):
            if self.result().proven(self.gap) or self.clock.stopped:
                break
            if factor != 1.0:
                self.price({p: factor * m for p, m in multipliers.items()})
            self.combine(0.5)
        return self.result()

    def result(self) -> Found:
        """What is known so far."""
        # A bound above all choices means that none fits.
        bound = math.inf if self.bound > self.dearest else self.bound
        return self.best.better(Found(None, math.inf, bound))

    def price(self, multipliers: Mapping[int, float]) -> bool:
        """Find the cheapest choice at some multipliers; whether that was possible."""
        graph = self.graph
        free = graph.copy(memory=False)
        if multipliers:
            paid = np.zeros(len(graph.limit) + 1)
            paid[np.array(list(multipliers), np.int64) + 1] = list(multipliers.values())
            paid = np.cumsum(paid)
            for i, pieces in graph.pieces.items():
                price = paid[pieces.last] - paid[pieces.first]
                if price.any():
                    free.costs[i] = free.costs[i] + price @ pieces.usage
        found = self.optimum(free, self.clock)
        capacity = graph.capacity
        given = sum(m * capacity[p] for p, m in multipliers.items())
        self.bound = max(self.bound, found.bound - given)
        if found.choice is None:
            return False
        choice = found.choice
        over = graph.load(choice) - capacity
        self.priced.append(Priced(choice, graph.cost(choice), over))
        if not (over > 0).any():
            self.best = self.best.better(Found.of(graph, choice, -math.inf))
        self.progress(
            f"pass {len(self.priced)}: bound {self.bound:.9g}, best {self.best.objective:.9g}"
        )
        return True

    def climb(self) -> dict[int, float]:
        """Raise the bound until the planes say that there is little left to gain."""
        best: dict[int, float] = {}
        clock = self.clock.part(0.6)
        for _ in range(PASSES):
            last = self.priced[-1]
            new = violated(
                last.over + self.graph.capacity, self.graph.capacity, self.points
            )
            for p in new[:4].tolist():
                self.points.append(p)
                # A first guess: that removing what is too much costs a tenth of everything.
                self.highest.append(0.1 * (abs(last.cost) + 1.0) / float(last.over[p]))
            if not self.points:
                break
            costs = np.array([c.cost for c in self.priced])
            over = np.array([c.over[self.points] for c in self.priced])
            found = best_multipliers(costs, over, np.array(self.highest))
            if found is None:
                break
            multipliers, reach = found
            for p, m in enumerate(multipliers):
                if m >= 0.999 * self.highest[p]:
                    self.highest[p] *= 8
            tolerance = max(0.5 * self.gap, ROUNDING) * abs(self.bound)
            limited = (multipliers >= 0.999 * np.array(self.highest)).any()
            if reach - self.bound <= tolerance and not limited and not len(new):
                break
            if clock.stopped:
                break
            before = self.bound
            current = dict(zip(self.points, multipliers.tolist(), strict=True))
            if not self.price(current):
                break
            if self.bound > before:
                best = current
            if self.result().proven(self.gap) or self.bound > self.dearest:
                break
        return best

    def combine(self, share: float) -> None:
        """The best choice among the alternatives that any priced choice has."""
        graph = self.graph
        part = graph.copy(memory=True)
        chosen = [c.choice for c in self.priced]
        if self.best.choice is not None:
            chosen.append(self.best.choice)
        for i, costs in graph.costs.items():
            some: Table = np.array([choice[i] for choice in chosen])
            kept = np.full(len(costs), np.inf)
            kept[some] = costs[some]
            part.costs[i] = kept
        try:
            reduce(part)
        except InfeasibleError:
            return
        clock = self.clock.part(share)
        found = solve_integer_program(part, clock=clock, gap=0.2 * self.gap)
        if found.choice is not None:
            choice = replay(part.steps, dict(found.choice))
            self.best = self.best.better(Found.of(graph, choice, -math.inf))
        self.progress(
            f"combined: best {self.best.objective:.9g}, bound {self.bound:.9g}"
        )


def dearest(graph: Graph) -> float:
    """Every node and edge at its dearest that is possible, or 0."""
    total = max(graph.constant, 0.0)
    for costs in graph.costs.values():
        total += max(float(costs.max()), 0.0)
    for _, _, matrix in graph.edges():
        total += float(matrix[np.isfinite(matrix)].max(initial=0.0))
    return total
