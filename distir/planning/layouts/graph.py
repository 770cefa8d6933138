"""The graph of choices: what can be done with each op and value, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Operation, SSAValue

from distir.dialects.dist import Layout
from distir.planning.layouts.prices import Prices
from distir.planning.layouts.strategies import Strategy
from distir.solver import Problem
from distir.solver.clock import Clock

Floats = npt.NDArray[np.float64]


@dataclass(eq=False)
class Node:
    """
    One choice: what an op does, or in which layout a value is kept for those that use it.

    - `strategies`: the alternatives; a value's has it as its operand and its result;
    - `seconds`: of each alternative, each time;
    - `count`: how many ops or values of the program share the choice.
    """

    what: str
    strategies: Sequence[Strategy]
    seconds: Sequence[float]
    count: int = 0


class Port(NamedTuple):
    """A value: a result of a node."""

    node: Node
    result: int

    def layouts(self) -> list[Layout]:
        """Its layout under each alternative."""
        return [s.results[self.result] for s in self.node.strategies]


class Use(NamedTuple):
    """A use of a value: as some operands of a node."""

    node: Node
    operands: tuple[int, ...]

    def wanted(self) -> set[Layout]:
        """Every layout in which some alternative takes the value."""
        return {s.operands[i] for s in self.node.strategies for i in self.operands}


@dataclass(eq=False)
class Body:
    """
    The choices in a function, for the calls of it that share them.

    - `ops`, `calls`, `arguments`: of its ops, calls (those of the callee) and arguments;
    - `kept`: of values that are brought to one layout for all that use them;
    - `results`: what it returns; for the entry nothing.
    """

    function: FuncOp
    count: int
    ops: dict[Operation, Node] = field(default_factory=dict[Operation, Node])
    calls: dict[CallOp, Body] = field(default_factory=dict[CallOp, "Body"])
    arguments: list[Node] = field(default_factory=list[Node])
    kept: dict[SSAValue, Node] = field(default_factory=dict[SSAValue, Node])
    results: list[Port] = field(default_factory=list[Port])
    sinks: dict[int, Node] = field(default_factory=dict[int, Node])
    """Of results of the entry that update nothing, by index."""


def value_node(what: str, layouts: Iterable[Layout]) -> Node:
    """The choice of a layout; nothing is done to the value."""
    alternatives = [
        Strategy((), (layout,), (layout,)) for layout in dict.fromkeys(layouts)
    ]
    return Node(what, alternatives, [0.0] * len(alternatives))


class Edge(NamedTuple):
    """A value that goes from one node to another."""

    source: Port
    use: Use


class Graph:
    """
    Nodes, and the values that go between them.

    - `nodes`: each with its number; `edges`: how often each value goes that way;
    - `types`: the (sequential) type of every value of the program.
    - `clock`: when it stops, TimeIsOver is raised.
    """

    def __init__(self, prices: Prices, clock: Clock | None = None):
        self.prices = prices
        self.clock = clock or Clock()
        self.nodes: dict[Node, int] = {}
        self.edges: dict[Edge, int] = {}
        self.types: dict[Port, Attribute] = {}
        self._reshards: dict[Edge, Floats | None] = {}
        self._moves: dict[
            tuple[Attribute, tuple[Layout, ...], tuple[Layout, ...]], Floats
        ] = {}

    def add(self, node: Node, count: int) -> Node:
        """Adds a node, or further uses of it."""
        self.nodes.setdefault(node, len(self.nodes))
        node.count += count
        return node

    def connect(self, source: Port, use: Use, count: int) -> None:
        """A value goes from a node to one that uses it."""
        edge = Edge(source, use)
        self.edges[edge] = self.edges.get(edge, 0) + count

    def problem(self, without: Set[Edge] = frozenset()) -> Problem:
        """The problem to solve, its nodes in the order of `nodes`, without some edges."""
        costs = [
            np.asarray(node.seconds, np.float64) * node.count for node in self.nodes
        ]
        edges: dict[tuple[int, int], Floats] = {}
        for edge, count in self.edges.items():
            matrix = None if edge in without else self.reshards(edge)
            if matrix is None:
                continue
            i, j = self.nodes[edge.source.node], self.nodes[edge.use.node]
            if i == j:
                costs[i] = costs[i] + count * np.diag(matrix)
                continue
            matrix = count * matrix
            key, oriented = ((i, j), matrix) if i < j else ((j, i), matrix.T)
            edges[key] = edges[key] + oriented if key in edges else oriented
        return Problem(costs, edges)

    def reshards(self, edge: Edge) -> Floats | None:
        """Seconds of bringing a value from each alternative to each; None: none ever."""
        if edge not in self._reshards:
            self._reshards[edge] = self._found_reshards(edge)
        return self._reshards[edge]

    def _found_reshards(self, edge: Edge) -> Floats | None:
        type_ = self.types[edge.source]
        have = edge.source.layouts()
        total: Floats | None = None
        seen: list[list[Layout]] = []
        for operand in edge.use.operands:
            want = [s.operands[operand] for s in edge.use.node.strategies]
            moves = self.moves(type_, have, want)
            # A layout that two operands share is made once.
            for before in seen:
                same = [a == b for a, b in zip(before, want, strict=True)]
                moves = np.where(same, 0.0, moves)
            seen.append(want)
            total = moves if total is None else total + moves
        return total if total is not None and total.any() else None

    def moves(
        self, type_: Attribute, have: Sequence[Layout], want: Sequence[Layout]
    ) -> Floats:
        """Seconds of a change from each layout of the rows to each of the columns."""
        key = type_, tuple(have), tuple(want)
        if key not in self._moves:
            rows = {layout: i for i, layout in enumerate(dict.fromkeys(have))}
            columns = {layout: i for i, layout in enumerate(dict.fromkeys(want))}
            small = np.empty((len(rows), len(columns)))
            # To one layout after the other, which is what prices are quick at.
            for j, after in enumerate(columns):
                self.clock.check()
                small[:, j] = [self.prices.reshard(type_, a, after) for a in rows]
            all_rows, all_columns = [rows[a] for a in have], [columns[b] for b in want]
            self._moves[key] = small[np.ix_(all_rows, all_columns)]
        return self._moves[key]
