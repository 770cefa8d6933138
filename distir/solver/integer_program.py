"""
The problem as an integer program, for HiGHS or CBC.

One binary `x[i, a]` per alternative, one continuous marginal `e[a, b]` per pair of an edge that
is possible:

    sum_a x[i, a] = 1        sum_b e[a, b] = x[i, a]        sum_a e[a, b] = x[j, b]
    sum usage[i, a] x[i, a] <= capacity, at each point

The relaxation of this form is much tighter than that of `e >= x_i + x_j - 1`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from distir.errors import DistIRError
from distir.solver.graph import Graph
from distir.solver.problem import Costs

SolverName = Literal["highs", "cbc"]
# The largest cost after scaling: the solvers' tolerances are absolute.
SCALED = 1e4


@dataclass(frozen=True)
class Found:
    """
    What a method found for a graph: a choice of its nodes or None, what it costs, a bound
    that no choice undercuts, and whether the user interrupted.
    """

    choice: dict[int, int] | None
    objective: float
    bound: float
    interrupted: bool = False


@dataclass(frozen=True)
class Answer:
    """What a solver answers: the columns of its best solution, and its bound, scaled."""

    columns: Costs | None
    bound: float
    interrupted: bool


@dataclass(frozen=True)
class Program:
    """
    The integer program in arrays. The first `binaries` columns are the alternatives, those of
    node `nodes[n]` from `offsets[n]` on; rows are compressed: row r has the entries from
    `starts[r]` to `starts[r + 1]`.
    """

    nodes: list[int]
    offsets: npt.NDArray[np.int64]
    binaries: int
    costs: Costs
    lower: Costs
    upper: Costs
    starts: npt.NDArray[np.int32]
    columns: npt.NDArray[np.int32]
    values: Costs
    scale: float

    def choice(self, columns: Costs) -> dict[int, int]:
        """Of a solution's columns."""
        ends = [*self.offsets[1:], self.binaries]
        return {
            node: int(columns[start:end].argmax())
            for node, start, end in zip(self.nodes, self.offsets, ends, strict=True)
        }

    def assignment(self, graph: Graph, choice: Mapping[int, int]) -> Costs:
        """The columns of a choice."""
        columns = np.zeros(len(self.costs))
        chosen = [choice[node] for node in self.nodes]
        columns[self.offsets + np.array(chosen, np.int64)] = 1.0
        column = self.binaries
        for i, j, matrix in graph.edges():
            finite = np.isfinite(matrix)
            if finite[choice[i], choice[j]]:
                before = np.count_nonzero(finite[: choice[i]])
                before += np.count_nonzero(finite[choice[i], : choice[j]])
                columns[column + before] = 1.0
            column += np.count_nonzero(finite)
        return columns

    def cover(
        self, graph: Graph, choice: Mapping[int, int], point: int
    ) -> npt.NDArray[np.int64]:
        """The columns of a choice that occupy something at a point."""
        found: list[int] = []
        for node, offset in zip(self.nodes, self.offsets, strict=True):
            pieces = graph.pieces.get(node)
            if pieces is not None:
                live = (pieces.first <= point) & (point < pieces.last)
                if pieces.usage[live, choice[node]].any():
                    found.append(int(offset) + choice[node])
        return np.array(found, np.int64)


def formulate(graph: Graph, covers: Sequence[npt.NDArray[np.int64]] = ()) -> Program:
    """
    The integer program of a graph. Of each cover, a set of binary columns, not all may be 1.
    """
    nodes = list(graph.costs)
    sizes = np.array([len(graph.costs[i]) for i in nodes], np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    start = dict(zip(nodes, offsets.tolist(), strict=False))
    binaries = int(offsets[-1])

    costs = [graph.costs[i] for i in nodes]
    rows: list[npt.NDArray[np.int64]] = [np.repeat(np.arange(len(nodes)), sizes)]
    columns: list[npt.NDArray[np.int64]] = [np.arange(binaries)]
    values: list[Costs] = [np.ones(binaries)]
    lower = [np.ones(len(nodes))]
    upper = [np.ones(len(nodes))]
    row, column = len(nodes), binaries
    for i, j, matrix in graph.edges():
        a, b = np.nonzero(np.isfinite(matrix))
        costs.append(matrix[a, b])
        at = np.arange(column, column + len(a))
        k, m = matrix.shape
        both = row + np.arange(k + m)
        rows += [row + a, row + k + b, both]
        ends = [start[i] + np.arange(k), start[j] + np.arange(m)]
        columns += [at, at, np.concatenate(ends)]
        values += [np.ones(2 * len(a)), -np.ones(k + m)]
        lower.append(np.zeros(k + m))
        upper.append(np.zeros(k + m))
        row, column = row + k + m, column + len(a)

    points, at, usage = _occupied(graph, start)
    largest = np.ones(len(graph.limit))
    np.maximum.at(largest, points, usage)
    rows.append(row + points)
    columns.append(at)
    values.append(usage / largest[points])
    lower.append(np.full(len(largest), -np.inf))
    upper.append(graph.capacity / largest)
    row += len(largest)
    for cover in covers:
        rows.append(np.full(len(cover), row))
        columns.append(cover)
        values.append(np.ones(len(cover)))
        lower.append(np.array([-np.inf]))
        upper.append(np.array([len(cover) - 1.0]))
        row += 1

    cost = np.concatenate(costs)
    if np.isinf(cost).any():
        raise ValueError("a graph must be reduced before it becomes an integer program")
    scale = max(float(np.abs(cost).max(initial=0.0)) / SCALED, 1e-300)
    row_of = np.concatenate(rows)
    order = np.argsort(row_of, kind="stable")
    counts = np.bincount(row_of, minlength=row)
    return Program(
        nodes,
        offsets[:-1],
        binaries,
        cost / scale,
        np.concatenate(lower),
        np.concatenate(upper),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        np.concatenate(columns)[order].astype(np.int32),
        np.concatenate(values)[order],
        scale,
    )


def _occupied(
    graph: Graph, start: Mapping[int, int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Costs]:
    """What alternatives occupy, as (point, column, usage), all that is not 0."""
    points: list[npt.NDArray[np.int64]] = []
    columns: list[npt.NDArray[np.int64]] = []
    usages: list[Costs] = []
    for i, pieces in graph.pieces.items():
        change = np.zeros((len(graph.limit) + 1, pieces.usage.shape[1]))
        np.add.at(change, pieces.first, pieces.usage)
        np.subtract.at(change, pieces.last, pieces.usage)
        usage = np.cumsum(change, axis=0)[:-1]
        point, a = np.nonzero(usage)
        points.append(point)
        columns.append(start[i] + a)
        usages.append(usage[point, a])
    if not points:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    return np.concatenate(points), np.concatenate(columns), np.concatenate(usages)


def solve_integer_program(
    graph: Graph,
    solver: SolverName = "highs",
    *,
    time_limit: float = math.inf,
    gap: float = 0.0,
    start: Mapping[int, int] | None = None,
) -> Found:
    """
    Solve a reduced graph within a time and to a relative gap, from a choice to start with if
    there is one. On a time-out or an interruption the best found is the answer. Where there
    is no choice, the bound is infinite.
    """
    from distir.solver.cbc import run_cbc
    from distir.solver.highs import run_highs

    if solver not in ("highs", "cbc"):
        raise DistIRError(f"there is no solver {solver!r}: choose highs or cbc")
    end = time.monotonic() + time_limit
    covers: list[npt.NDArray[np.int64]] = []
    while True:
        program = formulate(graph, covers)
        run = run_highs if solver == "highs" else run_cbc
        columns = None if start is None else program.assignment(graph, start)
        answer = run(program, end - time.monotonic(), gap, columns)
        bound = answer.bound * program.scale + graph.constant
        if answer.columns is None:
            return Found(None, math.inf, bound, answer.interrupted)
        choice = program.choice(answer.columns)
        over = graph.load(choice) - graph.capacity
        if not (over > 0).any():
            objective = graph.cost(choice)
            return Found(choice, objective, bound, answer.interrupted)
        # The solver took it within its tolerance: forbid these alternatives together.
        point = int(over.argmax())
        covers.append(program.cover(graph, choice, point))
