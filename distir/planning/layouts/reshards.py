"""The graph of layout strategies. The cost of an edge is the cost of a reshard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple, TypeAlias

import numpy as np
from xdsl.ir import Attribute

from distir.dialects.dist import Layout
from distir.planning.costs.cost_model import CostModel
from distir.planning.graph.bodies import Body, plan_of
from distir.planning.graph.function_plan import FunctionPlan
from distir.planning.graph.nodes import Edge, Floats, Node, Port, StrategyGraph
from distir.planning.graph.strategies import LayoutStrategy, Strategy
from distir.program import linked_arguments, return_op
from distir.solver.clock import Clock


class Use(NamedTuple):
    """
    A use of a value by a node. `operands` are the indices of the operands that are the
    value.
    """

    node: Node[LayoutStrategy]
    operands: tuple[int, ...]

    def wanted(self) -> set[Layout]:
        """
        Returns the set of layouts in which the alternatives of the node take the value.
        """
        return {s.operands[i] for s in self.node.strategies for i in self.operands}


LayoutNode: TypeAlias = Node[LayoutStrategy]
LayoutPort: TypeAlias = Port[LayoutStrategy]
LayoutBody: TypeAlias = Body[LayoutStrategy, LayoutStrategy]
LayoutEdge: TypeAlias = Edge[LayoutStrategy, Use]


def layouts_of(port: LayoutPort) -> list[Layout]:
    """
    Returns the layout of a value under each alternative of the node that computes it.
    """
    return [s.results[port.result] for s in port.node.strategies]


def value_node(what: str, layouts: Iterable[Layout]) -> LayoutNode:
    """
    Returns a node that only chooses a layout for a value. `what` names the value;
    `layouts` are the alternatives.
    """
    alternatives = [
        Strategy((), (layout,), (layout,)) for layout in dict.fromkeys(layouts)
    ]
    return Node(what, alternatives, [0.0] * len(alternatives))


class ReshardGraph(StrategyGraph[LayoutStrategy, Use]):
    """
    The graph of layout strategies of a program.

    - `types`: the sequential type of every value;
    - `constants`: the values that every use makes in its own layout, at no cost
      (`is_made_by_users`);
    - `sends`: the number of times per step that a value is sent to another pipeline
      stage, by the edge to a use there;
    - `clock`: TimeIsOver is raised when it stops.
    """

    def __init__(self, cost_model: CostModel, clock: Clock | None = None):
        super().__init__(self.reshards)
        self.cost_model = cost_model
        self.clock = clock or Clock()
        self.types: dict[LayoutPort, Attribute] = {}
        self.constants: set[LayoutPort] = set()
        self.sends: dict[LayoutEdge, int] = {}
        self._reshards: dict[LayoutEdge, Floats | None] = {}
        self._moves: dict[
            tuple[Attribute, tuple[Layout, ...], tuple[Layout, ...]], Floats
        ] = {}

    def reshards(self, edge: LayoutEdge) -> Floats | None:
        """
        Returns the matrix of reshard costs along an edge. Rows are the alternatives of
        the value's node, columns the alternatives of its user. Returns None if all
        costs are zero.
        """
        if edge not in self._reshards:
            self._reshards[edge] = self._found_reshards(edge)
        return self._reshards[edge]

    def _found_reshards(self, edge: LayoutEdge) -> Floats | None:
        have = layouts_of(edge.source)
        total: Floats | None = None
        seen: list[list[Layout]] = []
        for operand in edge.use.operands:
            want = [s.operands[operand] for s in edge.use.node.strategies]
            moves = self.moves(edge.source, have, want)
            # A layout that two operands share is made once.
            for before in seen:
                same = [a == b for a, b in zip(before, want, strict=True)]
                moves = np.where(same, 0.0, moves)
            seen.append(want)
            total = moves if total is None else total + moves
        return total if total is not None and total.any() else None

    def edge_costs(
        self, without: Set[LayoutEdge]
    ) -> Iterator[tuple[LayoutEdge, Floats]]:
        """
        Yields edges with their cost matrices: the costs of reshards, except for edges
        in `without`, and the costs of sends. A value is sent in its own layout or, if
        that is cheaper, in the layout of its use.
        """
        yield from super().edge_costs(without)
        for edge, times in self.sends.items():
            type_, (operand, *_) = self.types[edge.source], edge.use.operands
            want = [s.operands[operand] for s in edge.use.node.strategies]
            own, of_use = (
                [self.cost_model.send(type_, layout) for layout in layouts]
                for layouts in (layouts_of(edge.source), want)
            )
            yield edge, times * np.minimum.outer(own, of_use)

    def moves(
        self, value: LayoutPort, have: Sequence[Layout], want: Sequence[Layout]
    ) -> Floats:
        """
        Returns the matrix of costs of resharding `value` from each layout in `have`
        (rows) to each layout in `want` (columns).
        """
        moves = self._moves_of(self.types[value], have, want)
        if value in self.constants:
            moves = np.where([bool(layout.partial) for layout in want], moves, 0.0)
        return moves

    def _moves_of(
        self, type_: Attribute, have: Sequence[Layout], want: Sequence[Layout]
    ) -> Floats:
        key = type_, tuple(have), tuple(want)
        if key not in self._moves:
            rows = {layout: i for i, layout in enumerate(dict.fromkeys(have))}
            columns = {layout: i for i, layout in enumerate(dict.fromkeys(want))}
            small = np.empty((len(rows), len(columns)))
            # One target layout after the other, for which cost models are fast.
            for j, after in enumerate(columns):
                self.clock.check()
                small[:, j] = [self.cost_model.reshard(type_, a, after) for a in rows]
            all_rows, all_columns = [rows[a] for a in have], [columns[b] for b in want]
            self._moves[key] = small[np.ix_(all_rows, all_columns)]
        return self._moves[key]


def chosen_plan(
    entry: LayoutBody, chosen: Mapping[LayoutNode, LayoutStrategy]
) -> FunctionPlan[Layout]:
    """
    Returns the plan of the program in which each node has its strategy in `chosen`.
    """
    updates = linked_arguments(entry.function)
    leaving = (
        entry.arguments[updates[i]] if i in updates else entry.sinks[i]
        for i in range(len(return_op(entry.function).operands))
    )
    return plan_of(
        entry,
        chosen.__getitem__,
        lambda port: chosen[port.node].results[port.result],
        [chosen[node].results[0] for node in leaving],
    )
