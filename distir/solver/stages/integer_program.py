"""
Divisions of any graph: an integer program, built with PuLP and solved by HiGHS.

A binary y[i, s] says whether node i is on stage s or a later one, so that an edge (i, j) is
y[i, s] <= y[j, s], and node i is on stage s if x[i, s] = y[i, s] - y[i, s + 1] is 1. Each
stage has a row for its load. A tensor is brought to stage s if z[t, s] is 1, which is at
least x[c, s] - x[p, s] for its producer p and each consumer c: once for each stage.

Under a load cap C most of the y are known. With T_a seconds of predecessors (direct or not)
and T_d of successors, a node of t seconds has a stage between ceil((T_a + t) / C) - 1 and
d - ceil((t + T_d) / C): the stages up to its own hold its predecessors and itself. (Rhino's
upper bound counts from the wrong end, and without C as a constraint its bounds do not hold.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from distir.solver.stages.problem import StageProblem

SLACK = 1e-6
"""To what precision the solver keeps constraints."""


@dataclass(frozen=True)
class BoundedStages:
    """
    `stages` of the nodes, or None where none were found; no division has an objective
    below `bound`, which is infinite if there is none.
    """

    stages: Sequence[int] | None
    bound: float


def stage_bounds(problem: StageProblem, cap: float) -> tuple[list[int], list[int]]:
    """The first and last stage that each node can be on under a load cap."""
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
    """How many stages that much work needs at least."""
    return ceil(seconds / cap * (1 - SLACK) - SLACK) if cap > 0 else 0


def free_choices(problem: StageProblem, cap: float) -> int:
    """How many of the binaries the bounds leave open."""
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
    Minimises communication, or with `balanced` the load of the busiest stage, among the
    divisions with no load above `cap`. `start` is such a division, if one is known. What
    is there after `time_limit` seconds is given with the bound so far.
    """
    low, high = stage_bounds(problem, cap)
    if any(n > h for n, h in zip(low, high, strict=True)):
        return BoundedStages(None, np.inf)
    return _Program(problem, cap, low, high, balanced=balanced).solve(start, time_limit)


class _Program:
    """The integer program. Loads are in units of the cap, costs in that of the dearest."""

    def __init__(
        self,
        problem: StageProblem,
        cap: float,
        low: Sequence[int],
        high: Sequence[int],
        *,
        balanced: bool,
    ):
        import pulp

        self._pulp: Any = pulp
        self.problem, self.low, self.high = problem, low, high
        self.load_unit = cap if cap > 0 else 1.0
        self.cost_unit = max((t.cost for t in problem.tensors), default=0.0) or 1.0
        self.is_impossible = False
        self._count = 0
        self.model: Any = pulp.LpProblem("stages", pulp.LpMinimize)
        self._later = {
            (i, s): self._variable(binary=True)
            for i in range(problem.nodes)
            for s in range(low[i] + 1, high[i] + 1)
        }
        if balanced:
            busiest = self._variable()
            self.unit, terms = self.load_unit, [(busiest, 1.0)]
        else:
            busiest = None
            self.unit, terms = self.cost_unit, self._transfers()
        self.model.setObjective(pulp.LpAffineExpression(terms))
        self._keep_order()
        self._limit_loads(busiest)
        self._fill_stages()
        self._limit_memory()

    def solve(self, start: Sequence[int] | None, time_limit: float) -> BoundedStages:
        """The answer within that many seconds."""
        if self.is_impossible:
            return BoundedStages(None, np.inf)
        solver = self._pulp.HiGHS(
            msg=False, timeLimit=max(time_limit, 0.01), gapRel=0.0, gapAbs=0.0
        )
        if start is not None:
            solver.callSolver = self._from(start)
        status = self.model.solve(solver)
        if status == self._pulp.LpStatusInfeasible:
            return BoundedStages(None, np.inf)
        highs = self.model.solverModel
        info = highs.getInfo()
        bound = float(info.mip_dual_bound) * self.unit
        if highs.getModelStatus().name == "kOptimal":
            # Also of a program without binaries, which has no such bound.
            bound = float(info.objective_function_value) * self.unit
        if int(info.primal_solution_status) != 2:  # 2: a feasible solution
            return BoundedStages(None, bound)
        stages = list(self.low)
        for (i, _), variable in self._later.items():
            # A variable that is in no constraint has no value.
            stages[i] += round(variable.varValue or 0.0)
        return BoundedStages(stages, bound)

    def _from(self, start: Sequence[int]) -> Callable[[Any], None]:
        """Runs HiGHS on a model that PuLP built, from a known division."""
        known = {v.name: float(start[i] >= s) for (i, s), v in self._later.items()}

        def run(model: Any) -> None:
            columns = [v.index for v in model.variables() if v.name in known]
            values = [known[v.name] for v in model.variables() if v.name in known]
            model.solverModel.setSolution(
                len(columns), np.array(columns, np.int32), np.array(values, np.float64)
            )
            model.solverModel.run()

        return run

    def _variable(self, *, binary: bool = False) -> Any:
        # Numbers with zeros in front: PuLP sorts variables by name.
        self._count += 1
        name = f"v{self._count:08}"
        category = self._pulp.LpBinary if binary else self._pulp.LpContinuous
        return self.model.add_variable(name, 0, 1 if binary else None, category)

    def _at_or_after(self, node: int, stage: int, sign: float) -> _Sum:
        """sign * y[node, stage]."""
        variable = self._later.get((node, stage))
        if variable is None:
            return _Sum([], sign * (stage <= self.low[node]))
        return _Sum([(variable, sign)], 0.0)

    def _on(self, node: int, stage: int, sign: float = 1.0) -> _Sum:
        """sign * x[node, stage]."""
        return self._at_or_after(node, stage, sign) + self._at_or_after(
            node, stage + 1, -sign
        )

    def _add(self, total: _Sum, least: float) -> None:
        """Requires a sum to be at least that much."""
        if total.terms:
            pulp = self._pulp
            expression = pulp.LpAffineExpression(total.terms)
            self.model.addConstraint(
                pulp.LpConstraint(
                    expression, pulp.LpConstraintGE, rhs=least - total.constant
                )
            )
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
        """The weights of the nodes on a stage, negative."""
        total = _Sum([], 0.0)
        for i, weight in enumerate(weights):
            if weight and self.low[i] <= stage <= self.high[i]:
                total += self._on(i, stage, -weight / unit)
        return total

    def _limit_loads(self, busiest: Any) -> None:
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

    def _transfers(self) -> list[tuple[Any, float]]:
        """Adds a variable for each tensor and stage; gives the terms of the objective."""
        terms: list[tuple[Any, float]] = []
        for tensor in self.problem.tensors:
            if tensor.cost <= 0:
                continue
            consumers = sorted(set(tensor.consumers) - {tensor.producer})
            for stage in range(self.problem.stages):
                there = [c for c in consumers if self.low[c] <= stage <= self.high[c]]
                if not there:
                    continue
                brought = self._variable()
                terms.append((brought, tensor.cost / self.cost_unit))
                without = self._on(tensor.producer, stage)
                for consumer in there:
                    total = _Sum([(brought, 1.0)], 0.0) + without
                    self._add(total + self._on(consumer, stage, -1.0), 0.0)
        return terms


@dataclass(frozen=True)
class _Sum:
    """A sum of variables with coefficients, and a constant."""

    terms: list[tuple[Any, float]]
    constant: float

    def __add__(self, other: _Sum) -> _Sum:
        return _Sum(self.terms + other.terms, self.constant + other.constant)
