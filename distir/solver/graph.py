"""
The problem while it is being solved: a graph that loses its nodes one after another.

The methods of solution work on a `CostGraph` instead of a `Problem`. They restrict the
nodes of a `CostGraph` to fewer alternatives, merge nodes and remove nodes. Each of
these steps records a `Substitution`. Replaying the substitutions backwards turns a
choice for the remaining nodes into a choice for all nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from distir.errors import DistIRError
from distir.solver.problem import Costs, Memory, Problem

ROUNDED = 1e-12
"""The relative rounding error of sums of bytes."""

Table = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pieces:
    """
    The memory of a node, in pieces. Piece p occupies `usage[p, a]` bytes if the node
    has alternative a. The piece exists from point in time `first[p]` to point `last[p]
    - 1`.
    """

    first: Table
    last: Table
    usage: Costs

    def chosen(self, table: npt.NDArray[np.integer]) -> Pieces:
        """
        Returns the memory pieces for a node whose alternatives are replaced:
        alternative n of the result is alternative `table[n]` of this node.
        """
        return Pieces(self.first, self.last, self.usage[:, table])

    def joined(self, other: Pieces | None) -> Pieces:
        """
        Returns the memory pieces of two nodes together. `other` holds the pieces of a
        node with the same alternatives, or is None if that node has no pieces.
        """
        if other is None:
            return self
        first = np.concatenate([self.first, other.first])
        last = np.concatenate([self.last, other.last])
        usage = np.concatenate([self.usage, other.usage])
        return Pieces(first, last, usage)

    def simplified(self) -> Pieces:
        """
        Returns the memory pieces with equal intervals merged, and without pieces that
        occupy no bytes.
        """
        if len(self.first) == 1 and self.usage.any():
            return self
        kept = self.usage.any(axis=1)
        first, last, usage = self.first[kept], self.last[kept], self.usage[kept]
        order = np.lexsort((last, first))
        first, last, usage = first[order], last[order], usage[order]
        new = np.ones(len(first), bool)
        new[1:] = (first[1:] != first[:-1]) | (last[1:] != last[:-1])
        at = np.flatnonzero(new)
        if len(at) < len(first):
            first, last, usage = first[at], last[at], np.add.reduceat(usage, at)
        return Pieces(first, last, usage)


@dataclass(frozen=True)
class Substitution:
    """
    The rule by which the alternative of a removed node follows from the alternatives
    that were chosen for `nodes`. The rule is the array `table`, which the alternatives
    of `nodes` index. If a node was only restricted to fewer alternatives, `nodes` is
    the node itself, and `table` maps its new alternatives to its old alternatives.
    """

    node: int
    nodes: tuple[int, ...]
    table: npt.NDArray[np.integer]


def replay(steps: Sequence[Substitution], choice: dict[int, int]) -> dict[int, int]:
    """
    Turns a choice for the graph after `steps` into a choice for the graph before them.
    Changes `choice` in place and returns it.
    """
    for step in reversed(steps):
        at = tuple(choice[node] for node in step.nodes)
        choice[step.node] = int(step.table[at])
    return choice


@dataclass
class CostGraph:
    """
    The graph that methods reduce and solve.

    - `costs[i]`: the costs of node i's alternatives; the keys are the remaining nodes.
    - `near[i][j]`: the cost matrix of an edge, with a row for each alternative of node
      i; `near[j][i]` is its transpose.
    - `pieces[i]`: the memory of node i beyond its least usage. A node without an entry
      occupies the same memory under all its alternatives.
    - `limit[p]`: the largest number of bytes that may be occupied at point p in time;
      `always[p]`: the change, at point p, in the bytes that every choice occupies.
    - `constant`: the cost of the decisions made so far.
    - `steps`: the reductions made so far, for `replay`.
    """

    costs: dict[int, Costs]
    near: dict[int, dict[int, Costs]]
    pieces: dict[int, Pieces] = field(default_factory=dict[int, Pieces])
    limit: Costs = field(default_factory=lambda: np.zeros(0))
    always: Costs = field(default_factory=lambda: np.zeros(1))
    constant: float = 0.0
    steps: list[Substitution] = field(default_factory=list[Substitution])

    @staticmethod
    def of(problem: Problem) -> CostGraph:
        """
        Returns the graph of a whole problem. Raises DistIRError if the shapes of the
        problem do not fit together.
        """
        check(problem)
        costs = {i: np.asarray(c, np.float64) for i, c in enumerate(problem.costs)}
        near: dict[int, dict[int, Costs]] = {i: {} for i in costs}
        for (i, j), matrix in problem.edges.items():
            near[i][j] = matrix
            near[j][i] = matrix.T
        graph = CostGraph(costs, near)
        if problem.memory is not None:
            graph.set_memory(problem.memory)
        return graph

    def set_memory(self, memory: Memory) -> None:
        """
        Sets the memory limit and the pieces of all nodes. Memory is measured only at
        moments that can be the peak: just before an interval ends, if another interval
        began after the previous measured moment.
        """
        intervals = np.array(memory.intervals, np.int64).reshape(-1, 2)
        first, last, points = peak_points(intervals)
        limit = float(memory.limit)
        if any((usage % 1).any() for usage in memory.usages):
            # Sums of fractions of bytes are rounded.
            largest = max(float(usage.max(initial=0.0)) for usage in memory.usages)
            limit += ROUNDED * max(abs(limit), largest)
        self.limit = np.full(points, limit)
        self.always = np.zeros(points + 1)
        self.pieces = {}
        for i, usage in enumerate(memory.usages):
            if first[i] < last[i]:
                usage = np.asarray(usage, np.float64)[None]
                self.set_pieces(i, Pieces(first[i : i + 1], last[i : i + 1], usage))

    @property
    def capacity(self) -> Costs:
        """
        The number of bytes that may be occupied at each point, beyond the bytes that
        every choice occupies.
        """
        return self.limit - np.cumsum(self.always)[:-1]

    def set_pieces(self, node: int, pieces: Pieces) -> None:
        """
        Sets the memory that `node` needs under each of its alternatives. Bytes that the
        node needs under all alternatives are subtracted from the capacity.
        """
        least = pieces.usage.min(axis=1)
        if least.any():
            np.add.at(self.always, pieces.first, least)
            np.subtract.at(self.always, pieces.last, least)
            usage = pieces.usage - least[:, None]
            pieces = Pieces(pieces.first, pieces.last, usage)
        pieces = pieces.simplified()
        if len(pieces.first):
            self.pieces[node] = pieces
        else:
            self.pieces.pop(node, None)

    def copy(self, *, memory: bool) -> CostGraph:
        """
        Returns an independent copy of the graph without the record of its reductions.
        With `memory`, the copy keeps the memory limit.
        """
        near = {i: dict(near) for i, near in self.near.items()}
        graph = CostGraph(dict(self.costs), near, constant=self.constant)
        if memory:
            graph.pieces = dict(self.pieces)
            graph.limit, graph.always = self.limit.copy(), self.always.copy()
        return graph

    @property
    def columns(self) -> int:
        """The number of columns of the graph's integer program."""
        alternatives = sum(len(costs) for costs in self.costs.values())
        return alternatives + sum(int(np.isfinite(m).sum()) for _, _, m in self.edges())

    def edges(self) -> Iterable[tuple[int, int, Costs]]:
        """Yields each edge once, as (i, j, matrix) with i < j."""
        for i, near in self.near.items():
            for j, matrix in near.items():
                if i < j:
                    yield i, j, matrix

    def add_edge(self, i: int, j: int, matrix: Costs) -> None:
        """
        Adds an edge between nodes `i` and `j`. If the nodes already have an edge, adds
        `matrix` to the matrix of this edge.
        """
        there = self.near[i].get(j)
        if there is not None:
            matrix = there + matrix
        self.near[i][j] = matrix
        self.near[j][i] = matrix.T

    def remove_edge(self, i: int, j: int) -> None:
        """Removes the edge between nodes `i` and `j`."""
        del self.near[i][j]
        del self.near[j][i]

    def remove_node(self, node: int, step: Substitution) -> None:
        """
        Removes a node and its edges. `step` is the rule by which `replay` later finds
        the alternative of this node.
        """
        for j in self.near.pop(node):
            del self.near[j][node]
        del self.costs[node]
        self.pieces.pop(node, None)
        self.steps.append(step)

    def restrict(self, node: int, kept: Table) -> None:
        """Restricts a node to the alternatives with the indices `kept`."""
        self.costs[node] = self.costs[node][kept]
        for j, matrix in self.near[node].items():
            matrix = np.ascontiguousarray(matrix[kept])
            self.near[node][j] = matrix
            self.near[j][node] = matrix.T
        if node in self.pieces:
            self.set_pieces(node, self.pieces[node].chosen(kept))
        self.steps.append(Substitution(node, (node,), kept))

    def cost(self, choice: Mapping[int, int]) -> float:
        """
        Returns the total cost of a choice for the remaining nodes. The cost of earlier
        decisions is included.
        """
        total = self.constant
        total += sum(float(c[choice[i]]) for i, c in self.costs.items())
        return total + sum(float(m[choice[i], choice[j]]) for i, j, m in self.edges())

    def load(self, choice: Mapping[int, int]) -> Costs:
        """
        Returns the bytes that a choice occupies at each point, beyond the bytes that
        every choice occupies.
        """
        return self.load_of(
            {i: pieces.usage[:, choice[i]] for i, pieces in self.pieces.items()}
        )

    def load_of(self, usages: Mapping[int, Costs]) -> Costs:
        """
        Returns the bytes that are occupied at each point in time. `usages` gives the
        bytes of the memory pieces of each node.
        """
        if not usages:
            return np.zeros(len(self.limit))
        usage = np.concatenate([usages[i] for i in self.pieces])
        change = np.zeros(len(self.limit) + 1)
        np.add.at(
            change, np.concatenate([p.first for p in self.pieces.values()]), usage
        )
        np.subtract.at(
            change, np.concatenate([p.last for p in self.pieces.values()]), usage
        )
        return np.cumsum(change)[:-1]


def peak_points(
    intervals: npt.NDArray[np.int64],
) -> tuple[Table, Table, int]:
    """
    Reduces the moments of intervals to points that are enough to find every peak of
    memory: all intervals that are live at the same moment are also live together at
    some point. Returns the first point of each interval, the point after the interval's
    last point, and the number of points.
    """
    live = intervals[:, 0] < intervals[:, 1]
    # Ends sort before beginnings at the same moment, as [start, end) excludes the end.
    moments = np.concatenate([intervals[live, 1], intervals[live, 0]])
    begins = np.repeat([0, 1], len(moments) // 2)
    order = np.lexsort((begins, moments))
    begin = begins[order]
    starts_run = begin > np.concatenate([np.zeros(1, np.int64), begin])[:-1]
    point = np.cumsum(starts_run)  # of the run of beginnings; ends follow their run
    where = np.empty(len(order), np.int64)
    where[order] = point
    half = len(moments) // 2
    first = np.zeros(len(intervals), np.int64)
    last = np.zeros(len(intervals), np.int64)
    # A beginning in run p is live from point p - 1; an end after run p excludes point p.
    first[live] = where[half:] - 1
    last[live] = where[:half]
    return first, last, int(point[-1]) if len(point) else 0


def check(problem: Problem) -> None:
    """Raises DistIRError if the parts of a problem do not fit together."""
    sizes = [len(c) for c in problem.costs]
    for i, costs in enumerate(problem.costs):
        if np.isnan(costs).any() or np.isneginf(costs).any():
            raise DistIRError(
                f"node {i} has a cost that is not a number or minus infinity: {costs}"
            )
    for (i, j), matrix in problem.edges.items():
        if not 0 <= i < j < len(sizes):
            raise DistIRError(
                f"edge ({i}, {j}) is not between two of the {len(sizes)} nodes, the "
                f"smaller first"
            )
        if matrix.shape != (sizes[i], sizes[j]):
            raise DistIRError(
                f"edge ({i}, {j}) has a matrix of {matrix.shape}; its nodes have "
                f"{sizes[i]} and {sizes[j]} alternatives"
            )
    memory = problem.memory
    if memory is None:
        return
    if [len(u) for u in memory.usages] != sizes or len(memory.intervals) != len(sizes):
        raise DistIRError(
            "the memory of a problem has one usage per alternative and one interval per node"
        )
