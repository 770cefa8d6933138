"""
Divides any graph into stages, by an integer program in HiGHS.

A binary y[i, s] says whether node i is on stage s or a later one. An edge (i, j)
becomes y[i, s] <= y[j, s]. Node i is on stage s if x[i, s] = y[i, s] - y[i, s + 1] is
1. Each stage has a row for its load. z[t, s] is 1 if tensor t is sent to stage s. It is at least x[c, s] - x[p, s] for the tensor's producer p and each consumer c. A tensor is thus charged once for each stage that receives it.

Under a load cap C most of the y are known in advance. Let a node take t seconds, its
predecessors (direct or not) T_a seconds and its successors T_d seconds. The stage of
the node is then at least ceil((T_a + t) / C) - 1, because the stages up to this one
hold the node and its predecessors. With d stages, the stage of the node is at most d -
ceil((t + T_d) / C). (Rhino's upper bound counts from the wrong end, and without C as a
constraint its bounds do not hold.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from distir.solver.clock import Clock
from distir.solver.programs.highs import Highs
from distir.solver.programs.program import ConstraintRows, LinearProgram
from distir.solver.stages.problem import StageProblem

SLACK = 1e-6
"""The precision to which the solver satisfies constraints."""


@dataclass(frozen=True)
class BoundedStages:
    """
    The result of a search for a division. `stages` holds the stage of each node, or is
    None if no division was found. `bound` is a lower bound on the objective of every
    division, and infinite if no division exists.
    """

    stages: Sequence[int] | None
    bound: float


def stage_bounds(problem: StageProblem, cap: float) -> tuple[list[int], list[int]]:
    """
    Returns the first and the last stage that each node can be on if no load exceeds
    `cap`.
    """
    size, last = problem.nodes, problem.stages - 1
    loads = np.array(problem.loads, np.float64)
    follows = np.zeros((size, size), bool)
    for i, j in sorted(problem.edges, key=lambda edge: edge[1]):
        follows[j] |= follows[i]
        follows[j, i] = True
    before, after = follows @ loads, loads @ follows
    low = [_stages_of(t, cap) - 1 for t in before + loads]
    high = [last + 1 - _stages_of(t, cap) for t in after + loads]
    return [max(n, 0) for n in low], [min(n, last) for n in high]


def _stages_of(seconds: float, cap: float) -> int:
    """
    Returns the least number of stages for `seconds` of work if no load exceeds `cap`.
    """
    return ceil(seconds / cap * (1 - SLACK) - SLACK) if cap > 0 else 0


def free_choices(problem: StageProblem, cap: float) -> int:
    """
    Returns the number of binary variables of the integer program that stay open once
    each node's first and last possible stage is known.
    """
    low, high = stage_bounds(problem, cap)
    return sum(max(h - n, 0) for n, h in zip(low, high, strict=True))


def solve(
    problem: StageProblem,
    cap: float,
    start: Sequence[int] | None = None,
    *,
    balanced: bool,
    time_limit: float,
) -> BoundedStages:
    """
    Returns the division with the least communication or, with `balanced`, with the
    least load of the busiest stage, among the divisions with no load above `cap`.
    `start` is such a division, or None. After `time_limit` seconds, the result is the
    best division found, with the bound so far.
    """
    low, high = stage_bounds(problem, cap)
    if any(n > h for n, h in zip(low, high, strict=True)):
        return BoundedStages(None, np.inf)
    return _Program(problem, cap, low, high, balanced=balanced).solve(start, time_limit)


class _Program:
    """
    The integer program of a division into stages. Loads are in units of the cap,
    communication costs in units of the largest cost.
    """

    def __init__(
        self,
        problem: StageProblem,
        cap: float,
        low: Sequence[int],
        high: Sequence[int],
        *,
        balanced: bool,
    ):
        self.problem, self.low, self.high = problem, low, high
        self.load_unit = cap if cap > 0 else 1.0
        self.cost_unit = max((t.cost for t in problem.tensors), default=0.0) or 1.0
        self.is_impossible = False
        self._rows: list[tuple[list[tuple[int, float]], float]] = []
        binaries = (
            (i, s) for i in range(problem.nodes) for s in range(low[i] + 1, high[i] + 1)
        )
        self._later = {binary: column for column, binary in enumerate(binaries)}
        self._columns = len(self._later)
        if balanced:
            busiest = self._column()
            self.unit, terms = self.load_unit, [(busiest, 1.0)]
        else:
            busiest = None
            self.unit, terms = self.cost_unit, self._transfers()
        self._objective = terms
        self._keep_order()
        self._limit_loads(busiest)
        self._fill_stages()
        self._limit_memory()

    def solve(self, start: Sequence[int] | None, time_limit: float) -> BoundedStages:
        """
        Solves the program within `time_limit` seconds and returns the division. `start`
        is a division to start from, or None.
        """
        if self.is_impossible:
            return BoundedStages(None, np.inf)
        if not self._columns:
            return BoundedStages(list(self.low), 0.0)
        known = None
        if start is not None:
            known = np.array([float(start[i] >= s) for i, s in self._later])
        highs = Highs(self._program())
        found = highs.run(Clock(max(time_limit, 0.01)), start=known)
        if found.columns is None:
            return BoundedStages(None, found.bound * self.unit)
        stages = list(self.low)
        for (i, _), column in self._later.items():
            stages[i] += round(found.columns[column])
        return BoundedStages(stages, found.bound * self.unit)

    def _program(self) -> LinearProgram:
        costs = np.zeros(self._columns)
        for column, cost in self._objective:
            costs[column] += cost
        upper = np.full(self._columns, np.inf)
        upper[: len(self._later)] = 1.0
        least = np.array([least for _, least in self._rows], np.float64)
        entries = [
            (r, *term) for r, (terms, _) in enumerate(self._rows) for term in terms
        ]
        rows, columns, values = np.array(entries, np.float64).reshape(-1, 3).T
        # A column that a sum has twice has one entry.
        keys = rows.astype(np.int64) * self._columns + columns.astype(np.int64)
        keys, where = np.unique(keys, return_inverse=True)
        values = np.bincount(where, values, len(keys)).astype(np.float64)
        row, column = np.divmod(keys, self._columns)
        no_limit = np.full(len(least), np.inf)
        table = ConstraintRows.of(least, no_limit, row, column, values)
        return LinearProgram(costs, upper, table, len(self._later))

    def _column(self) -> int:
        """Adds a continuous column and returns its index."""
        self._columns += 1
        return self._columns - 1

    def _at_or_after(self, node: int, stage: int, sign: float) -> _Sum:
        """
        Returns `sign` times y[node, stage], which is 1 if the node is on `stage` or a
        later one.
        """
        column = self._later.get((node, stage))
        if column is None:
            return _Sum([], sign * (stage <= self.low[node]))
        return _Sum([(column, sign)], 0.0)

    def _on(self, node: int, stage: int, sign: float = 1.0) -> _Sum:
        """Returns `sign` times x[node, stage], which is 1 if the node is on `stage`."""
        return self._at_or_after(node, stage, sign) + self._at_or_after(
            node, stage + 1, -sign
        )

    def _add(self, total: _Sum, least: float) -> None:
        """Adds the constraint that the sum `total` is at least `least`."""
        if total.terms:
            self._rows.append((total.terms, least - total.constant))
        elif total.constant < least - SLACK:
            self.is_impossible = True

    def _keep_order(self) -> None:
        for i, j in self.problem.edges:
            for s in range(self.low[j] + 1, self.high[i] + 1):
                self._add(
                    self._at_or_after(j, s, 1.0) + self._at_or_after(i, s, -1.0), 0.0
                )
        for i, s in self._later:
            if (i, s + 1) in self._later:
                self._add(
                    self._at_or_after(i, s, 1.0) + self._at_or_after(i, s + 1, -1.0),
                    0.0,
                )

    def _weighted(self, weights: Sequence[float], stage: int, unit: float) -> _Sum:
        """
        Returns minus the sum of the weights of the nodes on `stage`, in units of
        `unit`.
        """
        total = _Sum([], 0.0)
        for i, weight in enumerate(weights):
            if weight and self.low[i] <= stage <= self.high[i]:
                total += self._on(i, stage, -weight / unit)
        return total

    def _limit_loads(self, busiest: int | None) -> None:
        for stage in range(self.problem.stages):
            total = self._weighted(self.problem.loads, stage, self.load_unit)
            self._add(total, -1.0)
            if busiest is not None:
                self._add(total + _Sum([(busiest, 1.0)], 0.0), 0.0)

    def _fill_stages(self) -> None:
        weights = np.zeros(self.problem.nodes)
        weights[list(self.problem.layer_nodes)] = -1.0
        for stage in range(self.problem.stages):
            self._add(self._weighted(weights.tolist(), stage, 1.0), 1.0)

    def _limit_memory(self) -> None:
        memory = self.problem.memory
        if memory is None:
            return
        for stage, count in enumerate(memory.in_flight):
            pairs = zip(memory.fixed, memory.kept, strict=True)
            weights = [fixed + count * kept for fixed, kept in pairs]
            self._add(self._weighted(weights, stage, max(memory.limit, 1.0)), -1.0)

    def _transfers(self) -> list[tuple[int, float]]:
        """
        Adds a column for each tensor and each stage that the tensor may be sent to.
        Returns the terms of the objective, each as a column and its coefficient.
        """
        terms: list[tuple[int, float]] = []
        for tensor in self.problem.tensors:
            if tensor.cost <= 0:
                continue
            consumers = sorted(set(tensor.consumers) - {tensor.producer})
            for stage in range(self.problem.stages):
                there = [c for c in consumers if self.low[c] <= stage <= self.high[c]]
                if not there:
                    continue
                brought = self._column()
                terms.append((brought, tensor.cost / self.cost_unit))
                without = self._on(tensor.producer, stage)
                for consumer in there:
                    total = _Sum([(brought, 1.0)], 0.0) + without
                    self._add(total + self._on(consumer, stage, -1.0), 0.0)
        return terms


@dataclass(frozen=True)
class _Sum:
    """A linear expression: a sum of columns with coefficients, plus a constant."""

    terms: list[tuple[int, float]]
    constant: float

    def __add__(self, other: _Sum) -> _Sum:
        return _Sum(self.terms + other.terms, self.constant + other.constant)
