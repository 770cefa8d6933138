"""
Plans one mesh axis: builds the graph of a program's strategies, solves the graph and
reads the solution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from xdsl.ir import SSAValue

from distir.planning.axes.alternatives import Alternative, Available
from distir.planning.axes.axis_op import AxisProgram
from distir.planning.axes.builder import (
    AxisBody,
    AxisGraphBuilder,
    AxisPort,
)
from distir.planning.axes.policy import AxisPolicy
from distir.planning.axes.reach import ArgumentKey, Reach
from distir.planning.graph.bodies import plan_of
from distir.planning.graph.function_plan import AxisPlan
from distir.planning.graph.nodes import Node
from distir.program import return_op
from distir.sharding.placement import REPLICATED, PartialPlacement, Placement
from distir.solver import solve

A = TypeVar("A", bound=Alternative)
"""The type of a node's alternatives."""


class AxisPlanner:
    """
    Plans one mesh axis for a program.

    - `split_parameters`: whether parameters may start a split;
    - `is_forward`: whether the program is the forward pass of a training step;
    - `leaves_split`: whether results may leave the program split at no cost.
    """

    def __init__(
        self,
        program: AxisProgram,
        *,
        split_parameters: bool,
        is_forward: bool = False,
        leaves_split: bool = False,
    ):
        self.program = program
        self.policy = AxisPolicy(
            program,
            split_parameters=split_parameters,
            is_forward=is_forward,
            leaves_split=leaves_split,
        )
        self.nodes = 0
        """The number of choices in the graph that was solved last."""

    def solve(self, arguments: Sequence[ArgumentKey]) -> AxisPlan:
        """
        Returns the cheapest plan of the entry function for arguments in the placements
        `arguments`.
        """
        reached = Reach(self.policy).entry(arguments)
        builder = AxisGraphBuilder(self.policy)
        body, graph = builder.build(reached), builder.graph
        self.nodes = len(graph.nodes)
        return _Choices(builder, body, solve(graph.problem()).choice).plan()


class _Choices:
    """
    Reads a solution of the graph, and returns one plan per kind of call of a function.
    """

    def __init__(
        self, builder: AxisGraphBuilder, entry: AxisBody, choice: Sequence[int]
    ):
        self.builder = builder
        self.entry = entry
        self.choice = choice

    def plan(self) -> AxisPlan:
        """
        Returns the plan of the entry function, which contains the plans of all
        functions that it calls.
        """
        return plan_of(
            self.entry,
            lambda node: self._chosen(node).strategy,
            lambda port: self._available(port)[0],
            self._results(self.entry),
        )

    def _chosen(self, node: Node[A]) -> A:
        """Returns the chosen alternative of a node."""
        return node.strategies[self.choice[self.builder.graph.nodes[node]]]

    def _available(self, port: AxisPort) -> Available:
        return self._chosen(port.node).available(port.result)

    def _results(self, entry: AxisBody) -> tuple[Placement, ...]:
        """
        Returns the placements of the program's results. A result that updates an
        argument gets the argument's placement; any other result leaves in the cheapest
        placement.
        """
        updates, found = self.builder.program.updates, list[Placement]()
        last = return_op(entry.function)
        for i, value in enumerate(last.operands):
            if i in updates:
                found.append(self._chosen(entry.arguments[updates[i]]).placement)
                continue
            available = [
                *self._available(entry.ports[value]),
                *self._taken(entry, value),
            ]
            info = self.builder.program.info(last)
            leaving = self.builder.edge_costs.leaving(info, i, available)
            placement = min(leaving, key=lambda p: (leaving[p], str(p)))
            found.append(
                REPLICATED if isinstance(placement, PartialPlacement) else placement
            )
        return tuple(found)

    def _taken(self, entry: AxisBody, value: SSAValue) -> Iterator[Placement]:
        """Yields the placements in which the ops of function `entry` take a value."""
        for use in value.uses:
            node = entry.ops.get(use.operation)
            if node is not None:
                yield self._chosen(node).strategy.operands[use.index]
