"""
The graph of strategies of a program, as a problem for `distir.solver`.

It has one node for each op, each argument, and each value that several uses share. It
has one edge for each value from the place where it is computed to a place where it is
used. In some graphs a strategy covers one mesh axis only; in others it covers the
layouts on all axes.
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
"""The type of the alternatives of a node."""

N = TypeVar("N", bound="Node[Any]")


@dataclass(eq=False)
class Node(Generic[S]):
    """
    One choice: the strategy of an op, or the shardings in which a value is available to
    its uses.

    - `what`: the name of the node in messages;
    - `strategies`: the alternatives; `costs`: the cost of each alternative, per
      execution;
    - `count`: the number of executions of all ops or values of the program that share
      the choice.
    """

    what: str
    strategies: Sequence[S]
    costs: Sequence[float] | Floats
    count: int = 0


class Port(NamedTuple, Generic[S]):
    """A value in the graph: the result with index `result` of the node `node`."""

    node: Node[S]
    result: int


class Taker(Protocol):
    """
    A use of a value by a node. The subclasses for each kind of graph have further
    fields.
    """

    @property
    def node(self) -> Node[Any]: ...


U = TypeVar("U", bound=Taker)
"""The type of the uses of a value."""


class Edge(NamedTuple, Generic[S, U]):
    """A value that passes from the node that computes it to a use in another node."""

    source: Port[S]
    use: U


class StrategyGraph(Generic[S, U]):
    """
    A graph of nodes, which are choices, and of edges, which are values between them.

    - `nodes`: maps each node to its index; `edges`: maps each edge to the number of
      times that the value passes along it;
    - `cost`: a function that returns the cost matrix of an edge, with a row for each
      alternative of its source and a column for each alternative of its target, or None
      if the edge never costs anything.
    """

    def __init__(self, cost: Callable[[Edge[S, U]], Floats | None]):
        self.cost = cost
        self.nodes: dict[Node[S], int] = {}
        self.edges: dict[Edge[S, U], int] = {}

    def add(self, node: N, count: int) -> N:
        """
        Adds `count` executions to the node `node`, inserts the node if it is new, and
        returns it.
        """
        self.nodes.setdefault(node, len(self.nodes))
        node.count += count
        return node

    def connect(self, source: Port[S], use: U, count: int) -> None:
        """Adds `count` uses of the value `source` by a node."""
        edge = Edge(source, use)
        self.edges[edge] = self.edges.get(edge, 0) + count

    def chosen(self, choice: Iterable[int]) -> dict[Node[S], S]:
        """
        Maps each node to its chosen alternative. `choice` lists the indices of the
        alternatives, in the order of the nodes.
        """
        return {
            node: node.strategies[a] for node, a in zip(self.nodes, choice, strict=True)
        }

    def problem(self, without: Set[Edge[S, U]] = frozenset()) -> Problem:
        """
        Returns the problem for the solver, with its nodes in the order of `nodes`. The
        edges in `without` are left out.
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
        Yields each edge that can cost something, with its cost matrix times the number
        of times that the value passes along it. The edges in `without` are left out.
        """
        for edge, count in self.edges.items():
            matrix = None if edge in without else self.cost(edge)
            if matrix is not None:
                yield edge, count * matrix
