"""
The graph of strategies of a program, as a problem for `distir.solver`.

One node per op, per argument, and per value that several uses share; one edge per value that
goes from where it is made to where it is used. Graphs differ in what a strategy says: what one
mesh axis does to an op and in which ways values are there, or the layouts on all axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from distir.solver import Problem

Floats = npt.NDArray[np.float64]

S = TypeVar("S", covariant=True)
"""An alternative of a node."""

N = TypeVar("N", bound="Node[Any]")


@dataclass(eq=False)
class Node(Generic[S]):
    """
    One choice: what an op does, or how a value is there for those that use it.

    - `strategies`: the alternatives; `costs`: of each of them, each time;
    - `count`: how many ops or values of the program share the choice.
    """

    what: str
    strategies: Sequence[S]
    costs: Sequence[float] | Floats
    count: int = 0


class Port(NamedTuple, Generic[S]):
    """A value: a result of a node."""

    node: Node[S]
    result: int


class Taker(Protocol):
    """A use of a value, in a graph's own words: by a node."""

    @property
    def node(self) -> Node[Any]: ...


U = TypeVar("U", bound=Taker)
"""How a value is used."""


class Edge(NamedTuple, Generic[S, U]):
    """A value that goes from one node to another."""

    source: Port[S]
    use: U


class StrategyGraph(Generic[S, U]):
    """
    Nodes, and the values that go between them.

    - `nodes`: each with its number; `edges`: how often each value goes that way;
    - `cost`: of an edge, from each alternative of its source to each of its use;
      None for one that costs nothing ever.
    """

    def __init__(self, cost: Callable[[Edge[S, U]], Floats | None]):
        self.cost = cost
        self.nodes: dict[Node[S], int] = {}
        self.edges: dict[Edge[S, U], int] = {}

    def add(self, node: N, count: int) -> N:
        """Adds a node, or further uses of it."""
        self.nodes.setdefault(node, len(self.nodes))
        node.count += count
        return node

    def connect(self, source: Port[S], use: U, count: int) -> None:
        """A value goes from a node to one that uses it."""
        edge = Edge(source, use)
        self.edges[edge] = self.edges.get(edge, 0) + count

    def chosen(self, choice: Iterable[int]) -> dict[Node[S], S]:
        """What each node does, from the alternatives of the first nodes."""
        return {
            node: node.strategies[a]
            for node, a in zip(self.nodes, choice, strict=False)
        }

    def problem(self, without: Set[Edge[S, U]] = frozenset()) -> Problem:
        """The problem to solve, its nodes in the order of `nodes`, without some edges."""
        costs = [np.asarray(n.costs, np.float64) * n.count for n in self.nodes]
        edges: dict[tuple[int, int], Floats] = {}
        for edge, count in self.edges.items():
            matrix = None if edge in without else self.cost(edge)
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
