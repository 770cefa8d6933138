"""
The problem as an integer program, in arrays.

There is one binary `x[i, a]` for each alternative, and one continuous `e[a, b]` for
each possible pair of alternatives of an edge:

    sum_a x[i, a] = 1        sum_b e[a, b] = x[i, a]        sum_a e[a, b] = x[j, b]
    sum usage[i, a] x[i, a] <= capacity, at each point

The relaxation of this form is much tighter than with rows `e >= x_i + x_j - 1`. There
can be thousands of points in time, but only a handful matter. The rows of points are
therefore made on request only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from distir.solver.graph import CostGraph, Table
from distir.solver.problem import Costs

# The largest cost after scaling: the solvers' tolerances are absolute.
SCALED = 1e4


@dataclass(frozen=True)
class ProgramSolution:
    """
    The answer of a solver.

    - `columns`: the column values of the best solution; None if no solution was found;
    - `bound`: a lower bound on the cost, in scaled costs;
    - `reduced`: the reduced cost of each column, for a relaxation;
    - `duals`: the dual value of each row, for a relaxation.
    """

    columns: Costs | None
    bound: float
    reduced: Costs | None = None
    duals: Costs | None = None


@dataclass(frozen=True)
class ConstraintRows:
    """
    Rows of constraints with lower and upper bounds, as a compressed sparse matrix: row
    r has the entries `starts[r]` to `starts[r + 1] - 1` of `columns` and `values`.
    """

    lower: Costs
    upper: Costs
    starts: Table
    columns: Table
    values: Costs

    @staticmethod
    def of(
        lower: Costs, upper: Costs, rows: Table, columns: Table, values: Costs
    ) -> ConstraintRows:
        """
        Returns the rows with the bounds `lower` and `upper`. `rows`, `columns` and
        `values` list the matrix entries, in any order.
        """
        order = np.argsort(rows, kind="stable")
        counts = np.bincount(rows, minlength=len(lower))
        starts = np.concatenate([[0], np.cumsum(counts)])
        return ConstraintRows(lower, upper, starts, columns[order], values[order])


@dataclass(frozen=True)
class LinearProgram:
    """
    A program that minimises `costs` over columns between 0 and `upper` that satisfy
    `rows`. The first `integers` columns are integers.
    """

    costs: Costs
    upper: Costs
    rows: ConstraintRows
    integers: int = 0


class IntegerProgram:
    """
    The integer program of a reduced graph.

    - `nodes`: the nodes; `first[i]`: the column of node i's first alternative, followed
      by its other alternatives.
    - `pairs[i, j]`: the columns of an edge, as `(first column, alternatives of i,
      alternatives of j)`; they come after the columns of all nodes.
    - `linear`: the program without the rows for points in time; its costs are divided by
      `scale`.
    """

    def __init__(self, graph: CostGraph):
        self.graph = graph
        self.nodes = list(graph.costs)
        sizes = np.array([len(graph.costs[i]) for i in self.nodes], np.int64)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        self.first = dict(zip(self.nodes, offsets.tolist(), strict=False))
        binaries = int(offsets[-1])
        self.pairs: dict[tuple[int, int], tuple[int, Table, Table]] = {}

        costs = [graph.costs[i] for i in self.nodes]
        rows: list[Table] = [np.repeat(np.arange(len(sizes)), sizes)]
        columns: list[Table] = [np.arange(binaries)]
        values: list[Costs] = [np.ones(binaries)]
        row, column = len(sizes), binaries
        for i, j, matrix in graph.edges():
            a, b = np.nonzero(np.isfinite(matrix))
            costs.append(matrix[a, b])
            self.pairs[i, j] = column, a, b
            at = np.arange(column, column + len(a))
            k, m = matrix.shape
            rows += [row + a, row + k + b, row + np.arange(k + m)]
            ends = [self.first[i] + np.arange(k), self.first[j] + np.arange(m)]
            columns += [at, at, np.concatenate(ends)]
            values += [np.ones(2 * len(a)), -np.ones(k + m)]
            row, column = row + k + m, column + len(a)
        cost = np.concatenate(costs)
        if np.isinf(cost).any():
            raise ValueError("a graph is reduced before it becomes an integer program")
        self.scale = max(float(np.abs(cost).max(initial=0.0)) / SCALED, 1e-300)
        bounds = np.zeros(row)
        bounds[: len(sizes)] = 1.0
        entries = np.concatenate(rows), np.concatenate(columns), np.concatenate(values)
        self.linear = LinearProgram(
            cost / self.scale,
            np.ones(len(cost)),
            ConstraintRows.of(bounds, bounds, *entries),
            binaries,
        )

    def relaxed(self) -> LinearProgram:
        """
        Returns the program without integrality. It needs no upper bounds, because its
        rows imply that no column exceeds 1.
        """
        free = np.full(len(self.linear.costs), np.inf)
        return LinearProgram(self.linear.costs, free, self.linear.rows)

    def real(self, bound: float) -> float:
        """
        Returns the cost in the graph that corresponds to `bound`, a cost in the scaled
        program.
        """
        return bound * self.scale + self.graph.constant

    def choice(self, columns: Costs) -> dict[int, int]:
        """Returns the alternative of each node that the solution `columns` selects."""
        return {
            i: int(columns[at : at + len(self.graph.costs[i])].argmax())
            for i, at in self.first.items()
        }

    def assignment(self, choice: Mapping[int, int]) -> Costs:
        """
        Returns the values of all columns of the program for `choice`. The choice must
        be possible.
        """
        columns = np.zeros(len(self.linear.costs))
        for i, at in self.first.items():
            columns[at + choice[i]] = 1.0
        for (i, j), (at, a, b) in self.pairs.items():
            columns[at : at + len(a)] = (a == choice[i]) & (b == choice[j])
        return columns

    def load(self, columns: Costs) -> Costs:
        """
        Returns the bytes that the solution `columns` occupies at each point in time.
        The solution may be fractional.
        """
        graph = self.graph
        return graph.load_of(
            {
                i: pieces.usage
                @ columns[self.first[i] : self.first[i] + pieces.usage.shape[1]]
                for i, pieces in graph.pieces.items()
            }
        )

    def points(self, points: Table) -> ConstraintRows:
        """Returns the memory rows of the points in time `points`."""
        rows: list[Table] = [np.zeros(0, np.int64)]
        columns: list[Table] = [np.zeros(0, np.int64)]
        values: list[Costs] = [np.zeros(0)]
        for i, pieces in self.graph.pieces.items():
            live = pieces.first <= points[:, None]
            live &= points[:, None] < pieces.last
            usage = live.astype(np.float64) @ pieces.usage
            row, a = np.nonzero(usage)
            rows.append(row)
            columns.append(self.first[i] + a)
            values.append(usage[row, a])
        row, value = np.concatenate(rows), np.concatenate(values)
        largest = np.ones(len(points))
        np.maximum.at(largest, row, value)
        return ConstraintRows.of(
            np.full(len(points), -np.inf),
            self.graph.capacity[points] / largest,
            row,
            np.concatenate(columns),
            value / largest[row],
        )

    def cover(self, choice: Mapping[int, int], point: int) -> ConstraintRows:
        """
        Returns a constraint: among the nodes that occupy memory at the point in time
        `point` under `choice`, at least one must not take its alternative in `choice`.
        """
        found: list[int] = []
        for i, pieces in self.graph.pieces.items():
            live = (pieces.first <= point) & (point < pieces.last)
            if pieces.usage[live, choice[i]].any():
                found.append(self.first[i] + choice[i])
        count = len(found)
        return ConstraintRows.of(
            np.array([-np.inf]),
            np.array([count - 1.0]),
            np.zeros(count, np.int64),
            np.array(found, np.int64),
            np.ones(count),
        )


def violated(load: Costs, capacity: Costs, known: Iterable[int]) -> Table:
    """
    Returns up to 32 points at which `load` exceeds `capacity`, largest excess first.
    Points in `known` are skipped. Of consecutive points, only the worst one is
    returned.
    """
    over = load - capacity
    bad = over > 1e-9 * np.maximum(np.abs(capacity), 1.0)
    bad[list(known)] = False
    at = np.flatnonzero(bad)
    if not len(at):
        return at
    run = np.cumsum(np.diff(at, prepend=at[0]) > 1)
    order = np.lexsort((-over[at], run))
    firsts = np.flatnonzero(np.diff(run[order], prepend=-1))
    peaks = at[order][firsts]
    return peaks[np.argsort(-over[peaks], kind="stable")][:32]
