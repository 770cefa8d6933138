"""
The graph of strategies of a program, as a problem for `distir.solver`.

It has one node per op, per argument, and per value that several uses share, and one edge
per value that goes from where it is computed to where it is used. Graphs differ in what a
strategy is: what one mesh axis does to an op, or the layouts on all axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from distir.solver import Problem

Floats = npt.NDArray[np.float64]

S = TypeVar("S", covariant=True)
"""The kind of alternatives that a node has."""

N = TypeVar("N", bound="Node[Any]")


@dataclass(eq=False)
class Node(Generic[S]):
    """
    One choice: the strategy of an op, or the places in which a value is available to its
    uses.

    - `strategies`: the alternatives; `costs`: the cost of each of them, per execution;
    - `count`: how many ops or values of the program share the choice.
    """

    what: str
    strategies: Sequence[S]
    costs: Sequence[float] | Floats
    count: int = 0


class Port(NamedTuple, Generic[S]):
    """A value: one result of a node."""

    node: Node[S]
    result: int


class Taker(Protocol):
    """A use of a value by a node; each kind of graph adds its own fields."""

    @property
    def node(self) -> Node[Any]: ...


U = TypeVar("U", bound=Taker)
"""The kind of use that a value has."""


class Edge(NamedTuple, Generic[S, U]):
    """A value that goes from one node to another."""

    source: Port[S]
    use: U


class StrategyGraph(Generic[S, U]):
    """
    Nodes, and the values that go between them.

    - `nodes`: each node with its number; `edges`: how often a value goes along each edge;
    - `cost`: returns the costs of an edge, with a row for each alternative of its source
      and a column for each of its target; None for an edge that never costs anything.
    """

    def __init__(self, cost: Callable[[Edge[S, U]], Floats | None]):
        self.cost = cost
        self.nodes: dict[Node[S], int] = {}
        self.edges: dict[Edge[S, U], int] = {}

    def add(self, node: N, count: int) -> N:
        """
        Adds a node with a count, or adds to the count of a node that is there; returns it.
        """
        self.nodes.setdefault(node, len(self.nodes))
        node.count += count
        return node

    def connect(self, source: Port[S], use: U, count: int) -> None:
        """Adds `count` uses of a value by a node."""
        edge = Edge(source, use)
        self.edges[edge] = self.edges.get(edge, 0) + count

    def chosen(self, choice: Iterable[int]) -> dict[Node[S], S]:
        """
        Maps each node to its chosen alternative, given the numbers of the alternatives in
        the order of the nodes.
        """
        return {
            node: node.strategies[a] for node, a in zip(self.nodes, choice, strict=True)
        }

    def problem(self, without: Set[Edge[S, U]] = frozenset()) -> Problem:
        """
        Returns the problem to solve, with its nodes in the order of `nodes`, leaving out
        some edges.
        """
        costs = [np.asarray(n.costs, np.float64) * n.count for n in self.nodes]
        edges: dict[tuple[int, int], Floats] = {}
        for edge, matrix in self.edge_costs(without):
            i, j = self.nodes[edge.source.node], self.nodes[edge.use.node]
            if i == j:
                costs[i] = costs[i] + np.diag(matrix)
                continue
            key, oriented = ((i, j), matrix) if i < j else ((j, i), matrix.T)
            edges[key] = edges[key] + oriented if key in edges else oriented
        return Problem(costs, edges)

    def edge_costs(
        self, without: Set[Edge[S, U]]
    ) -> Iterator[tuple[Edge[S, U], Floats]]:
        """
        Yields the costs of edges, for all times that a value goes along them, leaving out
        some edges.
        """
        for edge, count in self.edges.items():
            matrix = None if edge in without else self.cost(edge)
            if matrix is not None:
                yield edge, count * matrix
