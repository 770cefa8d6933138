"""
Exact variable elimination (bucket elimination).

Nodes are eliminated one after another. The best alternative of a node, for each choice
of its neighbours, becomes a table over these neighbours. A table grows with the number
of neighbours that the node has at that time, so the order of elimination decides the
effort. `plan` looks for a good order and knows the sizes of all tables before any is
computed. `eliminate` computes the tables. Memory limits are ignored.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distir.solver.clock import Clock
from distir.solver.graph import CostGraph, Substitution, replay
from distir.solver.problem import Costs
from distir.solver.result import SolverResult

# Looking for a better order takes longer than this number of additions and comparisons.
LITTLE_WORK = 2e8


@dataclass(frozen=True)
class EliminationOrder:
    """
    An order of elimination, and its effort.

    - `order`: the nodes, in the order in which they are eliminated.
    - `entries`: number of entries of all tables together; `largest`: number of entries
      of the largest table.
    - `work`: approximate number of additions and comparisons.
    """

    order: tuple[int, ...]
    entries: float
    largest: float
    work: float


def plan(
    graph: CostGraph, most: float = math.inf, kept: Sequence[int] = ()
) -> EliminationOrder:
    """
    Returns a good order of elimination: the better of two greedy orders. The first
    order eliminates the node with the smallest table next. If this order needs too much
    work, a second order is tried. The second order eliminates next the node that adds
    the fewest table entries between neighbours (weighted min-fill). An order is cut
    short as soon as its work exceeds `most`. Nodes in `kept` are not eliminated.
    """
    order = _greedy(graph, most, kept)
    if order.work <= LITTLE_WORK:
        return order
    other = _greedy(graph, most, kept, is_fill=True)
    return min(order, other, key=lambda order: order.work)


def eliminate(
    graph: CostGraph, plan: EliminationOrder, clock: Clock
) -> SolverResult | None:
    """
    Returns the optimum of a graph by eliminating its nodes in the order `plan`. The
    graph is not changed. Returns None if the clock stops first.
    """
    taken = take_out(graph, plan, (), clock)
    if taken is None:
        return None
    steps, table = taken
    cost = graph.constant + float(table)
    if cost == math.inf:
        return SolverResult(None, math.inf, math.inf)
    return SolverResult(replay(steps, {}), cost, cost)


def take_out(
    graph: CostGraph, plan: EliminationOrder, kept: Sequence[int], clock: Clock
) -> tuple[list[Substitution], Costs] | None:
    """
    Eliminates all nodes except those in `kept`. Returns the steps by which `replay`
    finds the alternatives of the eliminated nodes, and a table with the least total
    cost for each choice of the kept nodes. Returns None if the clock stops first.
    """
    rank = {node: r for r, node in enumerate((*plan.order, *kept))}
    # Each factor is stored with the first of its nodes to be eliminated; its axes are
    # in the order of elimination.
    buckets: dict[int, list[tuple[tuple[int, ...], Costs]]] = {i: [] for i in rank}
    for i, j, matrix in graph.edges():
        if rank[i] < rank[j]:
            buckets[i].append(((i, j), matrix))
        else:
            buckets[j].append(((j, i), matrix.T))
    constant = 0.0
    steps: list[Substitution] = []
    for node in plan.order:
        if clock.stopped:
            return None
        factors = buckets.pop(node)
        scope = sorted(
            {j for nodes, _ in factors for j in nodes[1:]}, key=rank.__getitem__
        )
        table, best = _minimise(graph.costs[node], factors, scope, graph.costs)
        steps.append(Substitution(node, tuple(scope), best))
        if scope:
            buckets[scope[0]].append((tuple(scope), table))
        else:
            constant += float(table)
    whole = np.full([len(graph.costs[i]) for i in kept], constant)
    axis = {node: a for a, node in enumerate(kept)}
    left = [factor for factors in buckets.values() for factor in factors]
    for nodes, factor in [*left, *(((i,), graph.costs[i]) for i in kept)]:
        shape = [1] * len(kept)
        for node in nodes:
            shape[axis[node]] = len(graph.costs[node])
        whole = whole + factor.reshape(shape)
    return steps, whole


def _minimise(
    costs: Costs,
    factors: list[tuple[tuple[int, ...], Costs]],
    scope: list[int],
    sizes: Mapping[int, Costs],
) -> tuple[Costs, np.ndarray]:
    """
    Eliminates a node. Returns two tables over the choices of the nodes in `scope`: the
    least sum of `costs` and `factors` over all alternatives of the eliminated node, and
    the first alternative with this sum. The eliminated node is the first axis of each
    factor.
    """
    axis = {node: a for a, node in enumerate(scope)}
    shaped: list[Costs] = []
    for nodes, factor in sorted(factors, key=lambda f: f[1].size):
        shape = [1] * len(scope)
        for node in nodes[1:]:
            shape[axis[node]] = len(sizes[node])
        shaped.append(factor.reshape(len(factor), *shape))
    shape = [len(sizes[node]) for node in scope]
    kind = np.uint8 if len(costs) <= 256 else np.int32
    if math.prod(shape) * len(costs) <= 1 << 16:
        total = costs.reshape(-1, *[1] * len(scope))
        for factor in shaped:
            total = total + factor
        best = total.argmin(axis=0)
        return total.min(axis=0), best.astype(kind)
    # One alternative after the other, so that no more than the table is in memory.
    table = np.full(shape, np.inf)
    best = np.zeros(shape, kind)
    for a, cost in enumerate(costs):
        total = np.asarray(cost)
        for factor in shaped:
            total = total + factor[a]
        better = total < table
        np.copyto(table, total, where=better)
        best[np.broadcast_to(better, best.shape)] = a
    return table, best


class Eliminated:
    """
    A graph from which nodes are eliminated. Each remaining node has a score: the size
    of the node's table or, with `is_fill`, twice the number of table entries that
    eliminating the node adds between its neighbours. The second kind of score is
    updated with every changed edge, because computing it from scratch takes time
    quadratic in the number of neighbours.

    - `near`: the neighbours of each node;
    - `sizes`: the number of alternatives of each node.
    """

    def __init__(self, graph: CostGraph, *, is_fill: bool):
        self.near = {i: set(around) for i, around in graph.near.items()}
        self.sizes = {i: float(len(costs)) for i, costs in graph.costs.items()}
        self._fill: dict[int, float] | None = None
        if is_fill:
            self._fill = {
                node: sum(
                    # A node is not among its own neighbours.
                    self.sizes[j] * (self._sum(around - self.near[j]) - self.sizes[j])
                    for j in around
                )
                for node, around in self.near.items()
            }

    def _sum(self, nodes: Collection[int]) -> float:
        return sum(map(self.sizes.__getitem__, nodes))

    def table(self, node: int) -> float:
        """
        Returns the number of entries of a node's table: the product of its neighbours'
        numbers of alternatives.
        """
        return math.prod(self.sizes[j] for j in self.near[node])

    def score(self, node: int) -> tuple[float, float]:
        """Returns the score of a node and the size of its table, which breaks ties."""
        table = self.table(node)
        return (table if self._fill is None else self._fill[node]), table

    def eliminate(self, node: int) -> set[int]:
        """
        Removes a node and connects its neighbours with each other. Returns the nodes
        whose scores may have changed.
        """
        near = self.near
        around = near.pop(node)
        for j in around:
            near[j].discard(node)
            if self._fill is not None:
                apart = self._sum(near[j] - around)
                self._fill[j] -= 2 * self.sizes[node] * apart
        changed = set(around)
        for j in around:
            new = around - near[j] - {j}
            if new:
                for k in new:
                    self._join(j, k)
                # The fill of every node that neighbours both ends of a new edge
                # changes.
                changed |= near[j]
        return changed

    def _join(self, j: int, k: int) -> None:
        left, right, sizes = self.near[j], self.near[k], self.sizes
        if self._fill is not None:
            for both in left & right:
                self._fill[both] -= 2 * sizes[j] * sizes[k]
            self._fill[j] += 2 * sizes[k] * self._sum(left - right)
            self._fill[k] += 2 * sizes[j] * self._sum(right - left)
        left.add(k)
        right.add(j)


def _greedy(
    graph: CostGraph, most: float, kept: Collection[int] = (), *, is_fill: bool = False
) -> EliminationOrder:
    """
    Returns the order that eliminates, at each step, the node with the lowest score.
    Ties are broken by the size of the node's table. The order is cut short as soon as
    its work exceeds `most`. Nodes in `kept` are not eliminated.
    """
    left = Eliminated(graph, is_fill=is_fill)
    current: dict[int, tuple[float, float]] = {}
    heap: list[tuple[tuple[float, float], int]] = []

    def push(node: int) -> None:
        if node in kept:
            return
        key = left.score(node)
        if current.get(node) != key:
            current[node] = key
            heapq.heappush(heap, (key, node))

    for node in left.near:
        push(node)
    order: list[int] = []
    entries = largest = work = 0.0
    while heap:
        key, node = heapq.heappop(heap)
        if current.get(node) != key:
            continue
        del current[node]
        table = left.table(node)
        entries += table
        largest = max(largest, table)
        work += table * left.sizes[node]
        if work > most:
            break
        order.append(node)
        for j in left.eliminate(node):
            push(j)
    return EliminationOrder(tuple(order), entries, largest, work)
