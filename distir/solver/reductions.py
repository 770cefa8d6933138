"""
Exact reductions: the reduced graph has the same optimum, and is often empty.

Each node on a worklist, those with the fewest neighbours first, is reduced if possible:

- alternatives are removed if their cost is infinite, or if an edge forbids them with
  every alternative of the neighbour;
- a node with one alternative left is decided, and its edges become costs of its
  neighbours;
- a node with at most two neighbours is folded: the cost of its best alternative, for
  each choice of the neighbours, becomes a cost or an edge of the neighbours;
- an alternative is removed if another alternative of the node never costs more, for any
  choice of the neighbours (Goldstein);
- a node is merged into a neighbour if the edge between them allows only one alternative
  of the node for each alternative of the neighbour.

Edges are normalised: costs that depend on one end only become costs of that end, and an
edge without costs is removed.

With a memory limit, a node that occupies memory is not folded. An alternative is then
removed only if the alternative that replaces it also occupies at most as much. For a
node with one neighbour this is tested for each alternative of the neighbour separately.
Points in time whose capacity no choice can exceed are removed first.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict

import numpy as np
import numpy.typing as npt

from distir.solver.clock import Clock
from distir.solver.graph import CostGraph, Pieces, Substitution, Table
from distir.solver.problem import Costs


def forget_slack(graph: CostGraph) -> list[int]:
    """
    Removes points in time that cannot limit the choice: points whose capacity no choice
    can exceed, and points whose capacity is exceeded only together with the capacity of
    another kept point. Returns the nodes that occupy less afterwards.
    """
    if not len(graph.limit):
        return []
    most, begins, ends = _extremes(graph)
    capacity = graph.capacity
    # A point with negative capacity stays, so that the search finds that nothing fits.
    kept = np.greater(most, capacity) | np.less(capacity, 0)
    tight = np.flatnonzero(kept)
    kept[tight] = _strictest(
        capacity[tight], _between(begins, tight), _between(ends, tight)
    )
    if kept.all():
        return []
    number = np.concatenate([[0], np.cumsum(kept)])
    graph.limit = capacity[kept]
    graph.always = np.zeros(len(graph.limit) + 1)
    changed: list[int] = []
    for i, pieces in list(graph.pieces.items()):
        first, last = number[pieces.first], number[pieces.last]
        some = first < last
        if some.all():
            graph.pieces[i] = Pieces(first, last, pieces.usage)
            continue
        graph.set_pieces(i, Pieces(first[some], last[some], pieces.usage[some]))
        changed.append(i)
    return changed


def _extremes(graph: CostGraph) -> tuple[Costs, Table, Table]:
    """
    Returns three arrays with an entry per point in time: the largest number of bytes
    that can be occupied, the number of memory pieces that begin at the point, and the
    number of memory pieces that end at the previous point.
    """
    points = len(graph.limit)
    change = np.zeros(points + 1)
    begins, ends = np.zeros(points, np.int64), np.zeros(points + 1, np.int64)
    for pieces in graph.pieces.values():
        most = pieces.usage.max(axis=1)
        np.add.at(change, pieces.first, most)
        np.subtract.at(change, pieces.last, most)
        np.add.at(begins, pieces.first, 1)
        np.add.at(ends, pieces.last, 1)
    return np.cumsum(change)[:-1], begins, ends[:-1]


def _between(events: Table, kept: Table) -> Table:
    """
    Returns, for each kept point in time, the number of events after the previous kept
    point, up to and including this point. `events` gives the number of events at each
    point.
    """
    return np.diff(np.cumsum(events)[kept], prepend=0)


def _strictest(capacity: Costs, begins: Table, ends: Table) -> npt.NDArray[np.bool_]:
    """
    Returns a mask of the points in time to keep. A point is dropped if a neighbouring
    point has no more capacity, and all memory pieces that are live at the dropped point
    are also live at this neighbour. When a point is dropped, its two neighbours become
    neighbours of each other and are compared too.
    """
    stack: list[int] = []
    began: list[int] = []  # between a point on the stack and the one below it
    ended: list[int] = []
    for p in range(len(capacity)):
        begin, end = int(begins[p]), int(ends[p])
        while stack and not end and capacity[p] <= capacity[stack[-1]]:
            stack.pop()
            begin, end = begin + began.pop(), ended.pop()
        if stack and not begin and capacity[p] >= capacity[stack[-1]]:
            # What ended before this point ended before the next one too.
            if p + 1 < len(capacity):
                ends[p + 1] += end
            continue
        stack.append(p)
        began.append(begin)
        ended.append(end)
    kept = np.zeros(len(capacity), bool)
    kept[stack] = True
    return kept


# The most entries for Goldstein's test: alternatives squared, times the entries of one
# row of all edges.
DOMINANCE_ENTRIES = 1 << 20
# The most parts of a node's alternatives, each with so many entries, that are compared.
PARTS = 16
# The most entries that the edges of a merged node may get.
MERGED_ENTRIES = 1 << 16
# Stands for infinity where it is subtracted.
FINITE = 1e200


class NoAlternative(Exception):
    """
    The error that a node has no possible alternative left. The error ends the
    reductions.
    """

    def __init__(self, node: int):
        self.node = node


def reduce(graph: CostGraph, clock: Clock | None = None) -> bool:
    """
    Reduces a graph in place until nothing more can be reduced or the clock stops.
    Returns False if a node has no possible alternative, else True.
    """
    try:
        Reductions(graph, clock).run()
    except NoAlternative:
        return False
    return True


class Reductions:
    """
    The reductions of a graph. A worklist of nodes is ordered by number of neighbours,
    because folding leaves first makes the work on other nodes smaller.
    """

    def __init__(self, graph: CostGraph, clock: Clock | None = None):
        self.graph = graph
        self.clock = clock
        self.queue: list[tuple[int, int]] = []
        self.queued: set[int] = set()

    def run(self) -> None:
        """
        Applies all reductions to the whole graph. Raises NoAlternative if a node has no
        possible alternative.
        """
        self.remove_infinite()
        self.normalise_all()
        forget_slack(self.graph)
        for i in self.graph.costs:
            self.push(i)
        self.settle()

    def settle(self) -> None:
        """
        Reduces the nodes on the worklist and all nodes that change on the way, and
        removes points that cannot limit the choice. Raises NoAlternative if a node has
        no possible alternative.
        """
        while True:
            self.drain()
            if self.is_late:
                break
            for i in forget_slack(self.graph):
                self.push(i)
            if not self.queue:
                break

    @property
    def is_late(self) -> bool:
        """
        Whether the time for the reductions is over, or the user has interrupted them.
        The reductions made so far stay valid.
        """
        return self.clock is not None and self.clock.stopped

    def drain(self) -> None:
        """
        Reduces the nodes on the worklist and all nodes that change on the way. Raises
        NoAlternative if a node has no possible alternative.
        """
        while self.queue and not self.is_late:
            _, i = heapq.heappop(self.queue)
            if i in self.queued:
                self.queued.discard(i)
                if i in self.graph.costs:
                    self.visit(i)

    def push(self, i: int) -> None:
        if i not in self.queued:
            self.queued.add(i)
            heapq.heappush(self.queue, (len(self.graph.near[i]), i))

    def visit(self, i: int) -> None:
        """
        Tries every reduction on node `i`. Nodes that change are put on the worklist.
        """
        graph = self.graph
        if not self.keep(i, np.isfinite(graph.costs[i])):
            return
        degree = len(graph.near[i])
        if len(graph.costs[i]) == 1:
            self.decide(i)
        elif degree <= 2 and i not in graph.pieces:
            self.fold(i)
        elif not self.dominate(i) and not self.merge(i) and degree == 1:
            self.restrict_leaf(i)

    # Alternatives ---------------------------------------------------------------------

    def keep(self, i: int, mask: npt.NDArray[np.bool_]) -> bool:
        """
        Restricts node `i` to the alternatives in `mask`. Returns True if no alternative
        is removed, so that further reductions of the node can be tried; otherwise the
        node is put on the worklist. Raises NoAlternative if no alternative is left.
        """
        if mask.all():
            return True
        if not mask.any():
            raise NoAlternative(i)
        graph = self.graph
        graph.restrict(i, np.flatnonzero(mask))
        for j in list(graph.near[i]):
            self.normalise_columns(i, j)
            self.push(j)
        self.push(i)
        return False

    def remove_infinite(self) -> None:
        """
        Removes the alternatives of infinite cost from all nodes at once. Raises
        NoAlternative if a node has no other alternative.
        """
        graph = self.graph
        kept: dict[int, Table] = {}
        for i, costs in graph.costs.items():
            mask = np.isfinite(costs)
            if not mask.all():
                if not mask.any():
                    raise NoAlternative(i)
                kept[i] = np.flatnonzero(mask)
        edges = [edge for edge in graph.edges() if edge[0] in kept or edge[1] in kept]
        for i, j, matrix in edges:
            if i in kept:
                matrix = matrix[kept[i]]
            if j in kept:
                matrix = matrix[:, kept[j]]
            graph.near[i][j], graph.near[j][i] = matrix, matrix.T
        for i, left in kept.items():
            graph.costs[i] = graph.costs[i][left]
            if i in graph.pieces:
                graph.set_pieces(i, graph.pieces[i].chosen(left))
            graph.steps.append(Substitution(i, (i,), left))

    def decide(self, i: int) -> None:
        """Removes node `i`, which has one alternative left."""
        graph = self.graph
        graph.constant += float(graph.costs[i][0])
        for j, matrix in graph.near[i].items():
            graph.costs[j] = graph.costs[j] + matrix[0]
            self.push(j)
        graph.remove_node(i, Substitution(i, (), np.zeros((), np.int64)))

    def dominate(self, i: int) -> bool:
        """
        Removes alternatives of node `i` that are dominated by another alternative of
        the node, by Goldstein's test. Returns whether any was removed. Compares all
        pairs of alternatives. If there are too many pairs, compares only alternatives
        with near indices; if there are far too many, compares none.
        """
        graph = self.graph
        number = len(graph.costs[i])
        width = sum(m.shape[1] for m in graph.near[i].values())
        size = max(2, math.isqrt(DOMINANCE_ENTRIES // max(1, width)))
        if number > size and number * size * width > PARTS * DOMINANCE_ENTRIES:
            return False
        # Dominance is transitive, so that the alternatives that are left over from parts
        # can be compared again.
        left = np.arange(number)
        while True:
            parts = np.array_split(left, -(-len(left) // size))
            kept = np.concatenate([part[self.undominated(i, part)] for part in parts])
            if len(parts) == 1 or len(kept) == len(left):
                break
            left = kept
        mask = np.zeros(number, bool)
        mask[kept] = True
        return not self.keep(i, mask)

    def undominated(self, i: int, some: Table) -> npt.NDArray[np.bool_]:
        """
        Returns a mask of the alternatives `some` of node `i` that no other alternative
        in `some` dominates. Of alternatives that dominate each other, the first stays.
        """
        graph = self.graph
        costs = graph.costs[i][some]
        number = len(some)
        # worse[a, b]: by how much a costs more than b at least, whatever the neighbours do
        worse = costs[:, None] - costs
        for matrix in graph.near[i].values():
            own = matrix[some]
            # Where a is impossible anyway, the difference is infinite.
            finite = np.minimum(own, FINITE)
            worse += np.min(own[:, None, :] - finite, axis=2)
        dominated = worse >= 0
        if i in graph.pieces:
            usage = graph.pieces[i].usage[:, some]
            dominated &= (usage[:, :, None] >= usage[:, None, :]).all(axis=0)
        gone = np.zeros(number, bool)
        if np.count_nonzero(dominated) > number:  # more than every one by itself
            np.fill_diagonal(dominated, False)
            for a in range(number - 1, -1, -1):
                gone[a] = bool((dominated[a] & ~gone).any())
        return ~gone

    # Nodes with few neighbours --------------------------------------------------------

    def fold(self, i: int) -> None:
        """
        Removes node `i` and moves its cost to its neighbours. The node has at most two
        neighbours, and the same memory under all alternatives.
        """
        graph = self.graph
        costs = graph.costs[i]
        near = tuple(graph.near[i].items())
        if not near:
            table = costs.argmin()
            graph.constant += float(costs[table])
            graph.remove_node(i, Substitution(i, (), np.asarray(table)))
        elif len(near) == 1:
            ((j, matrix),) = near
            total = matrix.T + costs
            table = total.argmin(axis=1)
            graph.remove_node(i, Substitution(i, (j,), table))
            graph.costs[j] = graph.costs[j] + total.min(axis=1)
            self.push(j)
        else:
            (j, first), (k, second) = near
            total = (first.T + costs)[:, None, :] + second.T[None, :, :]
            table = total.argmin(axis=2)
            graph.remove_node(i, Substitution(i, (j, k), table))
            graph.add_edge(j, k, total.min(axis=2))
            self.normalise(j, k)
            self.push(j)
            self.push(k)

    def restrict_leaf(self, i: int) -> None:
        """
        Reduces node `i`, which occupies memory and has one neighbour. For each
        alternative of the neighbour, forbids an alternative of node `i` if another one
        costs and occupies no more.
        """
        graph = self.graph
        ((j, matrix),) = graph.near[i].items()
        total = matrix.T + graph.costs[i]  # [alternative of j, alternative of i]
        number = total.shape[1]
        if number * total.size > DOMINANCE_ENTRIES:
            return
        dominated = total[:, :, None] >= total[:, None, :]
        usage = graph.pieces[i].usage
        dominated &= (usage[:, :, None] >= usage[:, None, :]).all(axis=0)
        dominated &= np.isfinite(total)[:, :, None]
        dominated[:, range(number), range(number)] = False
        gone = np.zeros(total.shape, bool)
        for a in range(number - 1, -1, -1):
            gone[:, a] = (dominated[:, a] & ~gone).any(axis=1)
        if gone.any():
            graph.remove_edge(i, j)
            graph.add_edge(i, j, np.where(gone.T, np.inf, matrix))
            self.normalise(i, j)
            self.push(i)
            self.push(j)

    # Merging --------------------------------------------------------------------------

    def merge(self, i: int) -> bool:
        """
        Merges node `i` into a neighbour whose alternative determines the alternative of
        node `i`. If there is no such neighbour, merges into node `i` a neighbour whose
        alternative node `i` determines. Returns whether a node was merged.
        """
        graph = self.graph
        for j, matrix in graph.near[i].items():
            finite = np.isfinite(matrix)
            count = np.count_nonzero(finite)
            if count == matrix.shape[1] and (finite.sum(axis=0) == 1).all():
                return self.merge_into(i, j, finite.argmax(axis=0))
            if count == matrix.shape[0] and (finite.sum(axis=1) == 1).all():
                return self.merge_into(j, i, finite.argmax(axis=1))
        return False

    def merge_into(self, i: int, j: int, table: Table) -> bool:
        """
        Removes node `i`, whose alternative is `table[b]` if node `j` has alternative b.
        The edges of node `i` move to node `j`. Returns False and changes nothing if the
        edges of node `j` would become too large, else True.
        """
        graph = self.graph
        number = len(table)
        if number > len(graph.costs[i]):
            width = sum(m.shape[1] for m in graph.near[i].values())
            if number * width > MERGED_ENTRIES:
                return False
        costs = graph.costs[i][table] + graph.near[i][j][table, np.arange(number)]
        moved = [(k, m[table]) for k, m in graph.near[i].items() if k != j]
        pieces = graph.pieces.get(i)
        graph.remove_node(i, Substitution(i, (j,), table))
        graph.costs[j] = graph.costs[j] + costs
        if pieces is not None:
            pieces = pieces.chosen(table).joined(graph.pieces.get(j))
            graph.set_pieces(j, pieces)
        for k, matrix in moved:
            graph.add_edge(j, k, matrix)
            self.normalise(j, k)
            self.push(k)
        self.push(j)
        return True

    # Edges ----------------------------------------------------------------------------

    def normalise(self, i: int, j: int) -> None:
        """
        Moves costs of an edge that depend on one end only into the costs of that end.
        Afterwards the least entry of each row and column is 0, unless the row or column
        belongs to an impossible alternative.
        """
        graph = self.graph
        matrix = graph.near[i][j]
        rows = matrix.min(axis=1)
        if rows.any():
            graph.costs[i] = graph.costs[i] + rows
            rows[rows == np.inf] = 0.0
            matrix = matrix - rows[:, None]
            graph.near[i][j] = matrix
            graph.near[j][i] = matrix.T
            self.push(i)
        self.normalise_columns(i, j)

    def normalise_columns(self, i: int, j: int) -> None:
        """
        Moves costs of the edge that depend on node `j` only into the costs of node `j`.
        Removes the edge if no costs are left.
        """
        graph = self.graph
        matrix = graph.near[i][j]
        columns = matrix.min(axis=0)
        if columns.any():
            graph.costs[j] = graph.costs[j] + columns
            columns[columns == np.inf] = 0.0
            matrix = matrix - columns
            graph.near[i][j] = matrix
            graph.near[j][i] = matrix.T
            self.push(j)
        if not matrix.any():
            graph.remove_edge(i, j)
            self.push(i)
            self.push(j)

    def normalise_all(self) -> None:
        """
        Moves costs that depend on one end of an edge only into the costs of that end,
        for all edges at once. Edges of the same shape are processed together.
        """
        graph = self.graph
        shapes: defaultdict[tuple[int, ...], list[tuple[int, int, Costs]]]
        shapes = defaultdict(list)
        for edge in graph.edges():
            shapes[edge[2].shape].append(edge)
        for edges in shapes.values():
            stack = np.stack([m for _, _, m in edges])
            rows = stack.min(axis=2)
            stack -= np.where(np.isinf(rows), 0.0, rows)[:, :, None]
            columns = stack.min(axis=1)
            stack -= np.where(np.isinf(columns), 0.0, columns)[:, None, :]
            changed_rows, changed_columns = rows.any(axis=1), columns.any(axis=1)
            left: npt.NDArray[np.bool_] = np.any(stack, axis=(1, 2))
            for e, (i, j, _) in enumerate(edges):
                if changed_rows[e]:
                    graph.costs[i] = graph.costs[i] + rows[e]
                if changed_columns[e]:
                    graph.costs[j] = graph.costs[j] + columns[e]
                if not left[e]:
                    graph.remove_edge(i, j)
                elif changed_rows[e] or changed_columns[e]:
                    graph.near[i][j] = stack[e]
                    graph.near[j][i] = stack[e].T
