"""
The graph of strategies of a program on one mesh axis, as a problem for `distir.solver`.

One node per op, per argument, and per value that several uses share; one edge per value that
goes from where it is made to where it is used.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.planning.axes.axis_plan import Source
from distir.planning.axes.candidates import AxisStrategy
from distir.sharding.placement import Placement
from distir.solver import Problem

Floats = npt.NDArray[np.float64]

Ways = tuple[Placement, ...]
"""The placements in which a value is there; the first is the one it is made in."""


class ArgumentFacts:
    """What is known of an argument of a function for one kind of call."""

    def __init__(self, placement: Placement | None, source: Source, requested: bool):
        self.fixed = placement
        self.source: Source = source
        self.requested = requested
        self.possible: dict[Placement, None] = {}

    def add(self, placements: Sequence[Placement]) -> bool:
        """Whether these are new ways in which it may come."""
        before = len(self.possible)
        self.possible |= dict.fromkeys(placements)
        return len(self.possible) > before


class Cut(NamedTuple):
    """A part of a value, and which of its uses (in program order) makes it."""

    placement: Placement
    use: int


@dataclass(eq=False)
class Node:
    """
    One choice. `ways[r][a]`: how result r is there under alternative a; `costs[a]`: of the
    alternative, each time; `count`: how often the program has it. `strategies` are those of
    an op; a value or an argument has none. `cuts[a]`: of a value, that one of its uses cuts
    a part out of it, or reduces and scatters it, and those behind have that part too.
    """

    number: int
    what: str
    ways: list[tuple[Ways, ...]]
    costs: Floats
    strategies: Sequence[AxisStrategy] = ()
    cuts: Sequence[Cut | None] = ()
    count: int = 0


@dataclass(frozen=True)
class Port:
    """A value: a result of a node."""

    node: Node
    result: int

    @property
    def ways(self) -> tuple[Ways, ...]:
        """How it is there under each alternative of its node."""
        return self.node.ways[self.result]


class Use(NamedTuple):
    """
    A use of a value: by an op, as that one of its operands. The node is the op's, or that
    of the argument of the function that the op calls.
    """

    op: Operation
    node: Node
    operand: int
    is_call: bool


@dataclass(eq=False)
class Body:
    """The choices in a function, for all calls of one kind."""

    function: FuncOp
    arguments: list[ArgumentFacts]
    possible: dict[SSAValue, Ways] = field(default_factory=dict[SSAValue, Ways])
    sources: dict[SSAValue, Source] = field(default_factory=dict[SSAValue, Source])
    requested: set[SSAValue] = field(default_factory=set[SSAValue])
    calls: dict[CallOp, Body] = field(default_factory=dict[CallOp, "Body"])
    strategies: dict[Operation, Sequence[AxisStrategy]] = field(
        default_factory=dict[Operation, Sequence[AxisStrategy]]
    )
    count: int = 0
    place: int = 0
    """Among the kinds of calls of a function, in program order."""
    ops: dict[Operation, Node] = field(default_factory=dict[Operation, Node])
    nodes: list[Node] = field(default_factory=list[Node])
    """Of the arguments."""
    ports: dict[SSAValue, Port] = field(default_factory=dict[SSAValue, Port])
    """Where values are for those that use them."""
    returned: list[Port] = field(default_factory=list[Port])
    kinds: dict[CallOp, Hashable] = field(default_factory=dict[CallOp, Hashable])

    @property
    def last(self) -> ReturnOp:
        """The op that ends it."""
        op = self.function.body.block.last_op
        assert isinstance(op, ReturnOp)
        return op


class StrategyGraph:
    """Nodes in the order in which they were added, and the edges between them."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._edges: dict[tuple[int, int], list[tuple[Floats, int]]] = {}
        self._own: dict[int, list[tuple[Floats, int]]] = {}

    def node(
        self,
        what: str,
        ways: list[tuple[Ways, ...]],
        costs: Floats,
        strategies: Sequence[AxisStrategy] = (),
    ) -> Node:
        """Adds a node, which the program has not used yet."""
        node = Node(len(self.nodes), what, ways, costs, strategies)
        self.nodes.append(node)
        return node

    def connect(self, source: Node, target: Node, matrix: Floats, count: int) -> None:
        """A value goes from one node to another, so many times, at that cost each time."""
        i, j = source.number, target.number
        if i == j:
            self._own.setdefault(i, []).append((np.diag(matrix), count))
            return
        if matrix.any():
            key = (i, j) if i < j else (j, i)
            term = matrix if i < j else matrix.T
            self._edges.setdefault(key, []).append((term, count))

    def charge(self, node: Node, costs: Floats, count: int) -> None:
        """A node costs so much more under each alternative, so many times."""
        self._own.setdefault(node.number, []).append((costs, count))

    def problem(self) -> Problem:
        """The problem to solve, its nodes in the order of `nodes`."""
        costs = [node.costs * node.count for node in self.nodes]
        for i, terms in self._own.items():
            for own, count in terms:
                costs[i] = costs[i] + own * count
        edges: dict[tuple[int, int], Floats] = {}
        for key, terms in self._edges.items():
            counts: dict[int, int] = {}
            matrices: dict[int, Floats] = {}
            for matrix, count in terms:
                base = id(matrix if matrix.base is None else matrix.base)
                counts[base] = counts.get(base, 0) + count
                matrices[base] = matrix
            total = None
            for base, count in counts.items():
                term = matrices[base] * count
                total = term if total is None else total + term
            assert total is not None
            edges[key] = total
        return Problem(costs, edges)
