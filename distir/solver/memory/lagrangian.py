"""
Replaces a memory limit by a price: each byte that is occupied at a point costs the
multiplier of that point (Lagrangian relaxation).

For given multipliers, the problem without a limit has a cheapest choice. The cost and
the price of this choice, less the price of the capacity, is a lower bound. Cutting
planes find the best multipliers: each choice that was priced gives a plane above the
bound, as a function of the multipliers. The next multipliers are those at which the
lowest plane is highest. A point gets a multiplier when a choice exceeds its capacity.

At the best multipliers, repeated layers cost the same with much memory as with little.
The multipliers are therefore raised a little for the nodes up to some position and
lowered for the nodes after it. A binary search finds the position from which the choice
fits.

Choices for different multipliers differ in parts, and a part that saves memory in one
choice may not be needed in another choice. The final answer is the best combination of
the alternatives in these choices. An integer program finds it. The program is small,
because the choices agree on nearly all nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distir.solver.clock import Clock
from distir.solver.graph import CostGraph, Table, replay
from distir.solver.memory.master import best_multipliers
from distir.solver.memory.relaxed import Optimum, optimum
from distir.solver.problem import Costs
from distir.solver.programs.integer_program import solve_integer_program
from distir.solver.programs.program import violated
from distir.solver.reductions import reduce
from distir.solver.result import ROUNDING, SolverResult

PASSES = 60

PATIENCE = 3
"""
The longest time that a pass may take, as a multiple of the usual time. At least
`LEAST_PATIENCE` seconds are allowed.
"""

LEAST_PATIENCE = 3.0

STEP = 0.3
"""
The length of a step from the best multipliers towards those where the lowest plane is
highest, as a fraction of the distance between them. It is used if the priced choices
are only nearly the cheapest.
"""

IDLE = 6
"""
The number of successive passes that hardly raise the bound after which the ascent ends,
if the priced choices are only nearly the cheapest.
"""

RISE = 0.1
"""
A pass is idle if it raises the bound by less than this fraction of the allowed gap.
"""

NODES = 20
"""
The largest number of branch-and-bound nodes in each search for the best combination.
Such a search need not prove anything about the whole problem.
"""

STEPS = (0.01, 0.05, 0.2)
"""The fractions by which multipliers are raised and lowered."""


@dataclass(frozen=True)
class Priced:
    """
    A choice that was the cheapest for given multipliers (prices of memory), with its
    cost. `over` is the number of bytes by which the choice exceeds the capacity of each
    point in time.
    """

    choice: Mapping[int, int]
    cost: float
    over: Costs

    @property
    def fits(self) -> bool:
        """Whether the choice keeps the memory limit."""
        return not (self.over > 0).any()


class Lagrangian:
    """
    The search for the best multipliers, and for choices near them. A multiplier is the
    price of a byte at a point in time.

    - `points`: the points that have a multiplier.
    - `optimum`: a function that finds the cheapest choice for given multipliers. If it
      finds good choices without a lower bound, `bound` is not valid.
    - `bound`: the highest lower bound found, at `multipliers`; `dearest`: an upper
      bound on the cost of every choice; `best`: the cheapest choice that fits into
      memory.
    """

    def __init__(
        self,
        graph: CostGraph,
        gap: float,
        clock: Clock,
        progress: Callable[[str], None],
        optimum: Optimum = optimum,
        is_exact: bool = True,
    ):
        self.optimum = optimum
        self.step, self.idle = (1.0, 1) if is_exact else (STEP, IDLE)
        self.graph, self.gap, self.clock, self.progress = graph, gap, clock, progress
        self.priced: list[Priced] = []
        self.seconds: list[float] = []
        self.vain = 0
        self.combined: set[tuple[int, int]] = set()
        self.points: list[int] = []
        self.highest: list[float] = []
        self.bound = -math.inf
        self.multipliers: dict[int, float] = {}
        self.dearest = dearest(graph) * (1 + 1e-6)
        self.best = SolverResult.of(graph, None, -math.inf)

    def go_on(self, other: Lagrangian) -> None:
        """
        Takes over the choices that the search `other` has priced. The costs and bytes
        of these choices are known, so this search starts with multipliers near the best
        ones. The bound of `other` may not be valid and is not used.
        """
        self.priced, self.points = other.priced, other.points
        self.highest, self.best = other.highest, other.best

    def run(self, thorough: bool = True) -> SolverResult:
        """
        Finds the best prices of memory, then looks for choices near them, and returns
        the best choice. With `thorough`, the search continues until the gap or the time
        limit is reached; otherwise it stops after the best combination of the choices
        seen.
        """
        if not self.priced and not self.price({}):
            return self.result()
        begin = self.clock.seconds
        multipliers = self.climb()
        # This is fast if layers differ, and too slow if they repeat.
        quick = self.clock.part(0.5, max(1.0, self.clock.seconds - begin))
        if not self.combine(self.choices, quick):
            near = self.stagger(multipliers)
            self.combine(near, self.clock.part(0.5))
        for factor in (1.2, 0.8, 2.0, 0.5) if thorough else ():
            if self.is_over or self.vain > (self.step == 1):
                break
            if not self.price(scaled(multipliers, factor)):
                break
            self.combine(self.choices, self.clock.part(0.5))
        return self.result()

    @property
    def patience(self) -> float:
        """
        The seconds that one search for the cheapest choice may take. At prices for
        which many choices are equally cheap, the search takes long. If the search is
        cut short, its best choice so far still gives a valid bound.
        """
        usual = (
            sorted(self.seconds)[len(self.seconds) // 2] if self.seconds else math.inf
        )
        return max(LEAST_PATIENCE, PATIENCE * usual)

    @property
    def choices(self) -> list[Mapping[int, int]]:
        """All choices that were priced."""
        return [c.choice for c in self.priced]

    @property
    def is_over(self) -> bool:
        """Whether the gap or the time limit is reached."""
        return self.result().proven(self.gap) or self.clock.stopped

    def result(self) -> SolverResult:
        """Returns the best choice and the bound so far."""
        # A bound above all choices means that none fits.
        bound = math.inf if self.bound > self.dearest else self.bound
        return self.best.better(SolverResult(None, math.inf, bound))

    def price(
        self,
        multipliers: Mapping[int, float],
        factors: Mapping[int, float] | None = None,
    ) -> bool:
        """
        Finds the cheapest choice for the multipliers (prices of memory) `multipliers`,
        and returns whether there is one. If `factors` are given, each node's
        multipliers are scaled by the node's factor, and the bound is not updated.
        """
        graph = self.graph
        free = graph.copy(memory=False)
        if multipliers:
            paid = np.zeros(len(graph.limit) + 1)
            paid[np.array(list(multipliers), np.int64) + 1] = list(multipliers.values())
            paid = np.cumsum(paid)
            for i, pieces in graph.pieces.items():
                price = paid[pieces.last] - paid[pieces.first]
                if price.any():
                    factor = 1.0 if factors is None else factors[i]
                    free.costs[i] = free.costs[i] + factor * (price @ pieces.usage)
        clock = self.clock.part(1.0, self.patience)
        begin = clock.seconds
        found = self.optimum(free, clock)
        self.seconds.append(clock.seconds - begin)
        capacity = graph.capacity
        if factors is None:
            given = sum(m * capacity[p] for p, m in multipliers.items())
            self.bound = max(self.bound, found.bound - given)
        if found.choice is None:
            return False
        choice = found.choice
        over = graph.load(choice) - capacity
        self.priced.append(Priced(choice, graph.cost(choice), over))
        if self.priced[-1].fits:
            self.best = self.best.better(SolverResult.of(graph, choice, -math.inf))
        self.progress(
            f"pass {len(self.priced)}: bound {self.bound:.9g}, best {self.best.objective:.9g}"
        )
        return True

    def climb(self) -> dict[int, float]:
        """
        Raises the lower bound, starting from the best multipliers (prices of memory) so
        far, until little is left to gain. Returns the best multipliers.
        """
        clock = self.clock.part(0.6)
        idle = 0
        for _ in range(PASSES):
            found = self.mixed()
            if found is None or not self.points:
                break
            multipliers, reach = found
            for p, m in enumerate(multipliers):
                if m >= 0.999 * self.highest[p]:
                    self.highest[p] *= 8
            limited = (multipliers >= 0.999 * np.array(self.highest)).any()
            if self.bound > -math.inf and not limited:
                tolerance = max(0.5 * self.gap, ROUNDING) * abs(self.bound)
                if reach - self.bound <= tolerance:
                    break
            if clock.stopped:
                break
            before = self.bound
            if self.multipliers and idle < self.idle:
                near = np.array([self.multipliers.get(p, 0.0) for p in self.points])
                multipliers = near + self.step * (multipliers - near)
            current = dict(zip(self.points, multipliers.tolist(), strict=True))
            if not self.price(current):
                break
            if self.bound > before:
                self.multipliers = current
            rise = self.bound - before
            idle = 0 if rise > RISE * self.gap * abs(self.bound) else idle + 1
            if idle > self.idle:
                # The planes are close to the bound: their choices may suffice.
                before = self.best.objective
                self.combine(self.choices, clock.part(0.2))
                if self.best.objective == before or self.step < 1:
                    break
            if self.result().proven(self.gap) or self.bound > self.dearest:
                break
        return self.multipliers

    def mixed(self) -> tuple[Costs, float] | None:
        """
        Returns the next multipliers (prices of memory), and the highest value that the
        bound can reach at these multipliers. They come from the cheapest mixture of
        choices that fits into memory on average. Points in time at which the mixture
        exceeds the capacity get a multiplier first. Returns None if the linear program
        is numerically too difficult.
        """
        capacity = self.graph.capacity
        costs = np.array([c.cost for c in self.priced])
        over = np.array([c.over for c in self.priced])
        added = False
        while True:
            found = best_multipliers(
                costs, over[:, self.points], np.array(self.highest)
            )
            if found is None:
                return None
            multipliers, reach, weights = found
            excess = weights @ over
            new = violated(excess + capacity, capacity, self.points)
            if not len(new) or added:
                return multipliers, reach
            added = True
            for p in new[:4].tolist():
                self.points.append(p)
                # A first guess: removing the excess costs a tenth of everything.
                most = 0.1 * (abs(costs[-1]) + 1.0) / float(excess[p])
                self.highest.append(most)

    def stagger(self, multipliers: Mapping[int, float]) -> list[Mapping[int, int]]:
        """
        Looks for choices with multipliers (prices of memory) that are raised for some
        of the nodes only, just enough to fit into memory. Returns all choices that were
        priced before, including the choice with the multipliers of all nodes raised.
        """
        near = self.choices
        nodes = sorted(self.graph.pieces)
        for step in STEPS:
            if self.is_over or not self.price(scaled(multipliers, 1 + step)):
                break
            near = self.choices
            before = self.best.objective
            if self.priced[-1].fits:
                self.raise_first(nodes, multipliers, step)
                self.raise_first(nodes[::-1], multipliers, step)
            # A small step does not outweigh the changes of layout between the nodes.
            if self.best.objective < before:
                break
        return near

    def raise_first(
        self, nodes: Sequence[int], multipliers: Mapping[int, float], step: float
    ) -> None:
        """
        Raises the multipliers (prices of memory) by the fraction `step` for the first
        nodes of `nodes`, and lowers them by this fraction for the remaining nodes. A
        binary search finds the smallest number of raised nodes for which the choice
        fits into memory. The choice must fit if all nodes are raised.
        """
        least, most = 0, len(nodes)
        while most - least > 1 and not self.is_over:
            raised = (least + most) // 2
            factors = {
                i: 1 + step if n < raised else 1 - step for n, i in enumerate(nodes)
            }
            if not self.price(multipliers, factors):
                return
            least, most = (least, raised) if self.priced[-1].fits else (raised, most)

    def combine(self, chosen: Sequence[Mapping[int, int]], clock: Clock) -> bool:
        """
        Finds the best combination of the alternatives in the choices `chosen` and in
        the best choice so far. Returns whether the search was finished in time.
        """
        graph = self.graph
        before = self.best.objective
        if self.best.choice is not None:
            chosen = [*chosen, self.best.choice]
        some: dict[int, Table] = {
            i: np.unique([choice[i] for choice in chosen]) for i in graph.costs
        }
        among = {(i, a) for i, kept in some.items() for a in kept.tolist()}
        if self.is_over or among <= self.combined:
            return True
        self.combined = among
        part = graph.copy(memory=True)
        for i, costs in graph.costs.items():
            kept = np.full(len(costs), np.inf)
            kept[some[i]] = costs[some[i]]
            part.costs[i] = kept
        if not reduce(part):
            return True
        found = solve_integer_program(
            part, clock=clock, gap=0.2 * self.gap, nodes=NODES, enough=before
        )
        if found.choice is not None:
            choice = replay(part.steps, dict(found.choice))
            self.best = self.best.better(SolverResult.of(graph, choice, -math.inf))
        self.vain = 0 if self.best.objective < before else self.vain + 1
        self.progress(
            f"combined: best {self.best.objective:.9g}, bound {self.bound:.9g}"
        )
        return not clock.stopped


def dearest(graph: CostGraph) -> float:
    """
    Returns an upper bound on the cost of every possible choice: the sum of the largest
    finite entry of each node and edge; negative entries count as 0.
    """
    total = max(graph.constant, 0.0)
    for costs in graph.costs.values():
        total += max(float(costs.max()), 0.0)
    for _, _, matrix in graph.edges():
        total += float(matrix[np.isfinite(matrix)].max(initial=0.0))
    return total


def scaled(multipliers: Mapping[int, float], factor: float) -> dict[int, float]:
    """Returns the multipliers times `factor`."""
    return {point: factor * m for point, m in multipliers.items()}
