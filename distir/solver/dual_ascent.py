"""
Finds bounds and choices for a graph by dual ascent, with sequential tree-reweighted
message passing (TRW-S).

Each edge sends messages to its two nodes: for each alternative, the least cost at the
other end. Messages move costs between nodes and edges, while the total cost of every
choice stays the same. The sum of the least costs of all nodes and edges is thus a lower
bound, which rises with each pass over the nodes. To read off a choice, the nodes are
decided in order; each takes the best alternative given the nodes before it. Bound and
choice are close to the optimum after some dozens of passes; a linear program of the
same relaxation takes ten times as long. An alternative that raises the bound by more
than the gap between bound and choice cannot be part of a better choice.

If costs of nodes change, the messages of the previous run are a good start for the next
run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from distir.solver.clock import Clock
from distir.solver.graph import CostGraph
from distir.solver.problem import Costs
from distir.solver.result import ROUNDING, SolverResult

PASSES = 300
"""
The largest number of passes over the nodes in a run; each goes forwards and backwards.
"""

LOOKED_AT = 5
"""The number of passes between two computations of the bound and of a choice."""

STALLED = 0.1
"""
A run ends if, between two computations of the bound, the bound rises by less than this
fraction of the allowed gap.
"""

LEAST_GAP = 1e-5
"""
The relative gap at which a run stops if the caller allows no gap. Other methods close
the rest.
"""

PROVING_STEP = 1e-6
"""
The step of a run that is to prove a choice. Passes up to there are cheap in comparison
with an integer program of what they leave.
"""

FORBIDDEN = 1e3
"""
The cost of an impossible pair of alternatives, as a multiple of the cost of everything
together.
"""

_Sender = tuple[int, float, list[tuple[int, Costs]]]
"""
A node, the fraction of its costs that it sends to each of its targets, and the targets
with the cost matrices of their edges.
"""


@dataclass
class _Fold:
    """
    A node that was folded: the node was removed from the graph, and the neighbours'
    costs now include the cost of the node's best alternative.

    - `near`: the neighbours of the node when it was removed, at most two;
    - `costs`: the costs of the node's alternatives;
    - `matrices`: the cost matrix of the edge to each neighbour, with a row for each
      alternative of the node.
    """

    node: int
    near: tuple[int, ...]
    costs: Costs
    matrices: list[Costs]


class DualAscent:
    """
    The relaxation of a graph without memory limits, by dual ascent. The nodes and edges
    of the graph do not change. Nodes with at most two neighbours are folded first
    (removed exactly). The remaining nodes are the core.

    - `costs`: the costs of the graph's nodes; they may be replaced between runs;
    - `best`: the cheapest choice and the highest bound of the most recent run.
    """

    def __init__(self, graph: CostGraph):
        self.graph = graph
        self.costs: Mapping[int, Costs] = graph.costs
        self.best = SolverResult(None, math.inf, -math.inf)
        finite = (np.abs(m[np.isfinite(m)]) for _, _, m in graph.edges())
        self.dearest_edges = sum(float(m.max(initial=0.0)) for m in finite)
        near = {i: set(around) for i, around in graph.near.items()}
        self.folded = _fold_order(near)
        self.order = sorted(near)
        rank = {i: r for r, i in enumerate(self.order)}
        self.before = {i: [j for j in near[i] if rank[j] < rank[i]] for i in near}
        self.after = {i: [j for j in near[i] if rank[j] > rank[i]] for i in near}
        self.messages: dict[int, dict[int, Costs]] = {
            i: {j: np.zeros(len(graph.costs[i])) for j in around}
            for i, around in near.items()
        }

    def run(
        self, clock: Clock, gap: float = 0.0, step: float | None = None
    ) -> SolverResult:
        """
        Returns a choice for all nodes that were not folded (removed exactly), and a
        bound. The run improves both until the relative gap `gap` is reached, the clock
        stops, or the bound rises by much less than the fraction `step` of the bound. By
        default `step` is the gap. If no choice is possible, the bound is infinite.
        """
        step = max(gap, LEAST_GAP) if step is None else step
        self._fold()
        forwards = self._senders(self.order, self.after)
        backwards = self._senders(self.order[::-1], self.before)
        self.best = SolverResult(None, math.inf, -math.inf)
        for n in range(PASSES):
            self._pass(forwards)
            self._pass(backwards)
            if n % LOOKED_AT and not clock.stopped:
                continue
            before = self.best.bound
            self._look()
            bound = self.best.bound
            if clock.stopped or self.best.proven(gap) or self.best.infeasible:
                break
            if bound - before < STALLED * step * abs(bound):
                break
        return self.best

    def remaining(self, limit: float) -> CostGraph:
        """
        Returns the graph of the nodes that were not folded (removed exactly).
        Alternatives are left out if every choice that contains them costs more than
        `limit`.
        """
        nodes, edges = self._parts()
        slack = {i: costs - costs.min() for i, costs in nodes.items()}
        for (i, j), matrix in edges.items():
            least = matrix.min()
            slack[i] = slack[i] + (matrix.min(axis=1) - least)
            slack[j] = slack[j] + (matrix.min(axis=0) - least)
        most = limit - self.best.bound
        most += ROUNDING * abs(limit)
        costs = {
            i: np.where(slack[i] <= most, self.core[i], math.inf) for i in self.order
        }
        near = {
            i: {
                j: np.where(m < self.forbidden, m, math.inf)
                for j, m in self.near[i].items()
            }
            for i in self.order
        }
        return CostGraph(costs, near, constant=self.constant)

    def result(self, core: SolverResult) -> SolverResult:
        """
        Returns the result for all nodes. `core` is the result for the nodes that were
        not folded (removed exactly); the best alternatives of the folded nodes follow
        from it.
        """
        if core.choice is None:
            return core
        every = dict(core.choice)
        for fold in reversed(self.folds):
            costs = fold.costs
            for j, matrix in zip(fold.near, fold.matrices, strict=True):
                costs = costs + matrix[:, every[j]]
            every[fold.node] = int(costs.argmin())
        return SolverResult(every, core.objective, core.bound)

    def _fold(self) -> None:
        """
        Folds nodes with at most two neighbours: removes these nodes, and adds the costs
        of their best alternatives to the costs and edges of the remaining nodes.
        """
        costs = dict(self.costs)
        near = {i: dict(around) for i, around in self.graph.near.items()}
        self.constant = self.graph.constant
        self.folds: list[_Fold] = []
        for i, around in self.folded:
            own, edges = costs.pop(i), near.pop(i)
            matrices = [edges[j] for j in around]
            self.folds.append(_Fold(i, around, own, matrices))
            if not around:
                self.constant += float(own.min())
                continue
            table = matrices[0] + own[:, None]
            j, k = around[0], around[-1]
            del near[j][i]
            if j == k:
                costs[j] = costs[j] + table.min(axis=0)
                continue
            del near[k][i]
            table = (table[:, :, None] + matrices[1][:, None, :]).min(axis=0)
            if k in near[j]:
                table = table + near[j][k]
            near[j][k], near[k][j] = table, table.T
        # Forbidden pairs get a very high cost, so that no infinities are subtracted.
        self.dearest = self.dearest_edges
        self.dearest += sum(float(np.abs(c).max()) for c in self.costs.values())
        self.forbidden = most = FORBIDDEN * self.dearest + 1.0
        self.core = {i: np.minimum(costs[i], most) for i in self.order}
        self.near = {
            i: {j: np.minimum(m, most, order="C") for j, m in near[i].items()}
            for i in self.order
        }

    def _pass(self, senders: Sequence[_Sender]) -> None:
        """
        Sends messages from each node in `senders` in turn to the nodes after it in the
        order of the pass. Each edge to a later node gets an equal share of the sending
        node's costs.
        """
        messages, least = self.messages, np.minimum.reduce
        for node, share, targets in senders:
            into = messages[node]
            costs = self.core[node]
            for told in into.values():
                costs = costs + told
            costs = share * costs
            for j, matrix in targets:
                told = least(matrix + (costs - into[j])[:, None], axis=0)
                messages[j][node] = told - least(told)

    def _senders(
        self, order: Sequence[int], ahead: Mapping[int, list[int]]
    ) -> list[_Sender]:
        return [
            (i, self._share(i, len(ahead[i])), [(j, self.near[i][j]) for j in ahead[i]])
            for i in order
            if ahead[i]
        ]

    def _share(self, node: int, targets: int) -> float:
        return 1.0 / max(targets, len(self.near[node]) - targets)

    def _with_messages(self, node: int) -> Costs:
        costs = self.core[node]
        for told in self.messages[node].values():
            costs = costs + told
        return costs

    def _parts(self) -> tuple[dict[int, Costs], dict[tuple[int, int], Costs]]:
        """
        Returns costs of the remaining nodes and edges that give every choice its
        original total cost. Call this after a backward pass.
        """
        nodes: dict[int, Costs] = {}
        edges: dict[tuple[int, int], Costs] = {}
        for i in self.order:
            costs, into, before = (
                self._with_messages(i),
                self.messages[i],
                self.before[i],
            )
            share = self._share(i, len(before)) if before else 0.0
            nodes[i] = (1 - share * len(before)) * costs
            for j in before:
                own = share * costs - into[j]
                edges[i, j] = self.near[i][j] + own[:, None] - self.messages[j][i]
        return nodes, edges

    def _look(self) -> None:
        """Computes the bound, reads off a choice, and updates the best result."""
        nodes, edges = self._parts()
        parts = (*nodes.values(), *edges.values())
        bound = self.constant + sum(float(part.min()) for part in parts)
        if bound > self.constant + self.dearest:
            self.best = SolverResult(None, math.inf, math.inf)
            return
        choice: dict[int, int] = {}
        objective = self.constant
        for i in self.order:
            fixed = self.core[i]
            for j in self.before[i]:
                fixed = fixed + self.near[j][i][choice[j]]
            costs = fixed
            for j in self.after[i]:
                costs = costs + self.messages[i][j]
            choice[i] = int(costs.argmin())
            objective += float(fixed[choice[i]])
        if objective > self.constant + self.dearest:
            self.best = self.best.better(SolverResult(None, math.inf, bound))
            return
        if objective < self.best.objective:
            self.best = SolverResult(choice, objective, self.best.bound)
        self.best = self.best.better(SolverResult(None, math.inf, bound))


def _fold_order(near: dict[int, set[int]]) -> list[tuple[int, tuple[int, ...]]]:
    """
    Returns the nodes that can be removed from a graph one after another. Each node has
    at most two neighbours when it is removed, and comes with these neighbours.
    """
    order: list[tuple[int, tuple[int, ...]]] = []
    queue = sorted(near, key=lambda i: (-len(near[i]), -i))
    while queue:
        i = queue.pop()
        if i not in near or len(near[i]) > 2:
            continue
        around = tuple(sorted(near.pop(i)))
        order.append((i, around))
        for j in around:
            near[j].discard(i)
            near[j].update(k for k in around if k != j)
        queue += around
    return order
