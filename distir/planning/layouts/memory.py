"""
The memory limit as part of the optimisation problem: the bytes on a device at every
moment that can be the peak.

Each alternative of a node occupies a number of bytes during an interval. Two nodes
decide whether a use of a value needs a copy in a different layout: the node of the
value and the node of the user. If the copy would not be small, an additional node
between these two decides whether the use takes the value itself or a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from distir.dialects.dist import Layout
from distir.planning.graph.nodes import Edge, Floats
from distir.planning.graph.strategies import LayoutStrategy
from distir.planning.layouts.builder import GraphBuilder
from distir.planning.layouts.lifetimes import (
    Computed,
    Fresh,
    Interval,
    Lifetimes,
    Partial,
    Updated,
    What,
    Workspace,
)
from distir.planning.layouts.reshards import (
    LayoutBody,
    LayoutEdge,
    LayoutNode,
    LayoutPort,
    layouts_of,
)
from distir.solver import Problem
from distir.solver.problem import Memory

SMALL = 1e-3
"""
Copies in another layout are neglected if they take less than this fraction of the
limit.
"""


@dataclass
class _Problem:
    costs: list[Floats]
    edges: dict[tuple[int, int], Floats]
    usages: list[dict[tuple[int, int], Floats]] = field(
        default_factory=list[dict[tuple[int, int], Floats]]
    )

    def add_node(self, costs: Floats) -> int:
        self.costs.append(costs)
        self.usages.append({})
        return len(self.costs) - 1

    def add_edge(self, i: int, j: int, matrix: Floats) -> None:
        if i > j:
            i, j, matrix = j, i, matrix.T
        self.edges[i, j] = self.edges[i, j] + matrix if (i, j) in self.edges else matrix

    def occupy(self, node: int, at: Interval, usage: Sequence[float] | Floats) -> None:
        """
        Adds `usage`, the bytes that each alternative of node `node` needs, during the
        interval `at`.
        """
        if not any(usage):
            return
        key = (at.start, at.end)
        more = np.asarray(usage, np.float64) * at.times
        before = self.usages[node].get(key)
        self.usages[node][key] = more if before is None else before + more

    def problem(self, limit: float) -> tuple[Problem, list[int]]:
        """
        Returns the optimisation problem with a limit of `limit` bytes, and for each of
        its nodes the number of the original node. A node of the problem occupies memory
        during one interval only, so a node with several intervals is repeated.
        """
        owners = list(range(len(self.costs)))
        usages: list[Floats] = []
        intervals: list[tuple[int, int]] = []
        repeated: list[tuple[int, tuple[int, int], Floats]] = []
        for i, costs in enumerate(self.costs):
            first, *rest = [*self.usages[i].items()] or [((0, 0), np.zeros(len(costs)))]
            intervals.append(first[0])
            usages.append(first[1])
            repeated += [(i, interval, usage) for interval, usage in rest]
        for i, interval, usage in repeated:
            same = np.full((len(usage), len(usage)), inf)
            np.fill_diagonal(same, 0.0)
            self.edges[i, len(self.costs)] = same
            self.costs.append(np.zeros(len(usage)))
            owners.append(i)
            usages.append(usage)
            intervals.append(interval)
        memory = Memory(usages, intervals, limit)
        return Problem(self.costs, self.edges, memory), owners


@dataclass(frozen=True)
class LimitedProblem:
    """
    An optimisation problem with a memory limit. Its first nodes are the nodes of the
    layout graph. `what` names the op or value of each node.
    """

    problem: Problem
    what: Sequence[str]


def with_memory(
    builder: GraphBuilder, entry: LayoutBody, limit: float
) -> LimitedProblem:
    """
    Returns the problem of the graph that `builder` built last, with a limit of `limit`
    bytes per device.
    """
    return _Builder(builder, entry, limit).problem()


@dataclass(frozen=True)
class Peak:
    """
    The memory in use on a device at the peak. `bytes` is the total. `held` lists the
    names of values and ops with the bytes that each occupies, largest first.
    """

    bytes: float
    held: Sequence[tuple[str, float]]


def peak_of(
    builder: GraphBuilder,
    entry: LayoutBody,
    chosen: Mapping[LayoutNode, LayoutStrategy],
) -> Peak:
    """Returns the peak memory of a device if each node has its strategy in `chosen`."""
    return _peak(builder, entry, lambda what: _size(builder, what, chosen))


def least_peak_of(builder: GraphBuilder, entry: LayoutBody) -> Peak:
    """
    Returns a lower bound of the peak memory under any choice in the graph that
    `builder` built last, without solving the problem. The bound assumes that every
    value has its smallest layout, and that only values take memory.
    """
    least: dict[What, float] = {}

    def size_of(what: What) -> float:
        if not isinstance(what, Computed):
            return 0.0
        if what not in least:
            sizes = _sizes(builder, what.port, dict.fromkeys(layouts_of(what.port)))
            least[what] = min(sizes, default=0.0)
        return least[what]

    return _peak(builder, entry, size_of)


def _peak(
    builder: GraphBuilder, entry: LayoutBody, size_of: Callable[[What], float]
) -> Peak:
    """Returns the peak memory, given the size in bytes of each piece of memory."""
    intervals = _intervals(builder, entry)
    changes = np.zeros(max((at.end for at in intervals), default=0) + 1)
    sizes = [at.times * size_of(at.what) for at in intervals]
    for at, size in zip(intervals, sizes, strict=True):
        changes[at.start] += size
        changes[at.end] -= size
    live = np.cumsum(changes)
    moment = int(live.argmax())
    held: dict[str, float] = {}
    for at, size in zip(intervals, sizes, strict=True):
        if at.start <= moment < at.end and size:
            held[_name(at.what)] = held.get(_name(at.what), 0.0) + size
    largest = sorted(held.items(), key=lambda item: -item[1])
    return Peak(builder.constant_bytes() + float(live[moment]), largest)


def _sizes(
    builder: GraphBuilder, port: LayoutPort, layouts: Iterable[Layout]
) -> list[float]:
    """
    Returns the bytes of a node's result in each of `layouts`, or zeros if the result is
    not a tensor.
    """
    type_ = builder.graph.types.get(port)
    return [
        0.0 if type_ is None else float(builder.cost_model.held(type_, layout))
        for layout in layouts
    ]


def _name(what: What) -> str:
    match what:
        case Computed(port) | Partial(port) | Updated(port, _):
            return port.node.what
        case Fresh(port, _):
            return f"a copy of {port.node.what}"
        case Workspace(_, node):
            return node.what


def _size(
    builder: GraphBuilder, what: What, chosen: Mapping[LayoutNode, LayoutStrategy]
) -> float:
    """
    Returns the bytes of one piece of memory if each node has its strategy in `chosen`.
    """

    def bytes_of(port: LayoutPort, layout: Layout) -> float:
        return _sizes(builder, port, (layout,))[0]

    if isinstance(what, Workspace):
        return builder.workspace(what.op, chosen[what.node])
    port = what.port
    have = chosen[port.node].results[port.result]
    match what:
        case Computed():
            return bytes_of(port, have)
        case Partial():
            return bytes_of(port, have) if have.partial else 0.0
        case Fresh(_, use):
            want = chosen[use.node].operands[use.operands[0]]
            return bytes_of(port, want) if want != have else 0.0
        case Updated(_, use):
            want = chosen[use.node].operands[use.operands[0]]
            return bytes_of(port, have) if want != have else 0.0


def _intervals(builder: GraphBuilder, entry: LayoutBody) -> list[Interval]:
    graph = builder.graph

    def may_need(what: What) -> bool:
        if isinstance(what, Workspace):
            strategies = what.node.strategies
            return any(builder.workspace(what.op, s) for s in strategies)
        if isinstance(what, Fresh):
            edge = Edge(what.port, what.use)
            return edge in graph.edges and graph.reshards(edge) is not None
        return True

    if entry not in builder.intervals:
        lifetimes = Lifetimes(
            entry, builder.cost_model.is_view, may_need, builder.is_sum
        )
        builder.intervals = {entry: lifetimes.intervals()}
    return builder.intervals[entry]


class _Builder:
    def __init__(self, builder: GraphBuilder, entry: LayoutBody, limit: float):
        self.builder = builder
        self.graph = builder.graph
        self.cost_model = builder.cost_model
        self.entry = entry
        self.limit = limit
        self.between: dict[LayoutEdge, tuple[int, list[float]]] = {}

    def problem(self) -> LimitedProblem:
        """
        Returns the problem with its nodes, its edges and the bytes that nodes occupy.
        """
        intervals = _intervals(self.builder, self.entry)
        divided = self._divided(at.what for at in intervals)
        plain = self.graph.problem(without=set(divided))
        self.built = _Problem(list(plain.costs), dict(plain.edges))
        self.built.usages += [{} for _ in plain.costs]
        for edge, what in divided.items():
            self.between[edge] = self._divide(edge, what)
        for at in intervals:
            self._occupy(at)
        limit = self.limit - self.builder.constant_bytes()
        problem, owners = self.built.problem(limit)
        names = [node.what for node in self.graph.nodes]
        names += [f"a copy of {edge.source.node.what}" for edge in self.between]
        return LimitedProblem(problem, [names[owner] for owner in owners])

    def _divided(self, every: Iterable[What]) -> dict[LayoutEdge, What]:
        """
        Returns the edges along which a copy that is not small may be needed. Maps each
        edge to the piece of memory of the copy.
        """
        found: dict[LayoutEdge, What] = {}
        small: set[LayoutEdge] = set()
        for what in every:
            if not isinstance(what, Fresh | Updated):
                continue
            edge = Edge(what.port, what.use)
            if edge in found or edge in small or edge not in self.graph.edges:
                continue
            copies = self._copies(what)
            type_ = self.graph.types[what.port]
            most = max(self.cost_model.held(type_, x) for x in copies)
            reshards = len(what.use.operands) == 1 and self.graph.reshards(edge)
            if most > SMALL * self.limit and isinstance(reshards, np.ndarray):
                found[edge] = what
            else:
                small.add(edge)
        return found

    def _copies(self, what: Fresh | Updated) -> list[Layout]:
        """Returns the layouts in which a value may need an additional buffer."""
        if isinstance(what, Updated):
            return list(dict.fromkeys(layouts_of(what.port)))
        return sorted(what.use.wanted(), key=str)

    def _divide(self, edge: LayoutEdge, what: What) -> tuple[int, list[float]]:
        """
        Adds a node between a value and its use. Returns the node's number and the bytes
        of its alternatives. Each possible layout of the copy has two alternatives. In
        the first half of the list, value and use have the same layout (0 bytes); in the
        second half, the value is copied.
        """
        assert isinstance(what, Fresh | Updated)
        source, target = what.port.node, what.use.node
        copies = self._copies(what)
        have = layouts_of(what.port)
        want = [s.operands[what.use.operands[0]] for s in target.strategies]
        into = _is_in(have, copies), _is_in(want, copies)
        count = self.graph.edges[edge]
        if isinstance(what, Updated):
            moves = count * self.graph.moves(what.port, copies, want)
            before = np.hstack([into[0], into[0]])
            after = np.vstack([into[1].T, moves])
        else:
            moves = count * self.graph.moves(what.port, have, copies)
            before = np.hstack([into[0], moves])
            after = np.vstack([into[1].T, into[1].T])
        node = self.built.add_node(np.zeros(2 * len(copies)))
        self.built.add_edge(self.graph.nodes[source], node, before)
        self.built.add_edge(node, self.graph.nodes[target], after)
        sizes = _sizes(self.builder, what.port, copies)
        return node, [*([0.0] * len(copies)), *sizes]

    def _occupy(self, at: Interval) -> None:
        match at.what:
            case Computed(port):
                self.built.occupy(self.graph.nodes[port.node], at, self._bytes(port))
            case Partial(port):
                layouts = layouts_of(port)
                usage = [
                    size if layout.partial else 0.0
                    for size, layout in zip(self._bytes(port), layouts, strict=True)
                ]
                self.built.occupy(self.graph.nodes[port.node], at, usage)
            case Workspace(op, node):
                usage = [self.builder.workspace(op, s) for s in node.strategies]
                self.built.occupy(self.graph.nodes[node], at, usage)
            case Fresh(port, use) | Updated(port, use):
                between = self.between.get(Edge(port, use))
                if between is not None:
                    self.built.occupy(between[0], at, between[1])

    def _bytes(self, port: LayoutPort) -> list[float]:
        return _sizes(self.builder, port, layouts_of(port))


def _is_in(layouts: Sequence[Layout], columns: Sequence[Layout]) -> Floats:
    """
    Returns a matrix with one row per layout in `layouts` and one column per layout in
    `columns`. An entry is 0 where the two layouts are equal, and infinity elsewhere.
    """
    return np.array([[0.0 if x == y else inf for y in columns] for x in layouts])
