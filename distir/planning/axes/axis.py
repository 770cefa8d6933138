"""The plan for one mesh axis: the graph of strategies solved, for every call of a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from xdsl.ir import SSAValue

from distir.planning.axes.alternatives import Alternative, Ways
from distir.planning.axes.builder import (
    AxisBody,
    AxisGraphBuilder,
    AxisPort,
)
from distir.planning.axes.policy import AxisPolicy
from distir.planning.axes.program import AxisProgram
from distir.planning.axes.reach import Reach
from distir.planning.axes.reached import ArgumentKey
from distir.planning.bodies import plan_of
from distir.planning.function_plan import AxisPlan
from distir.planning.graph import Node
from distir.program import return_op
from distir.sharding.placement import WHOLE, Placement
from distir.solver import solve

A = TypeVar("A", bound=Alternative)
"""An alternative."""


class AxisPlanner:
    """Plans one axis for a program; `split_parameters` and `is_forward` as in `AxisPolicy`."""

    def __init__(
        self, program: AxisProgram, *, split_parameters: bool, is_forward: bool = False
    ):
        self.program = program
        self.policy = AxisPolicy(
            program, split_parameters=split_parameters, is_forward=is_forward
        )
        self.nodes = 0
        """How many choices there were."""

    def solve(self, arguments: Sequence[ArgumentKey]) -> AxisPlan:
        """The cheapest plan for the entry function, whose arguments come like that."""
        reached = Reach(self.policy).entry(arguments)
        builder = AxisGraphBuilder(self.policy)
        body, graph = builder.build(reached), builder.graph
        self.nodes = len(graph.nodes)
        return _Choices(builder, body, solve(graph.problem()).choice).plan()


class _Choices:
    """Reads a solution: one plan for each way in which a function is called."""

    def __init__(
        self, builder: AxisGraphBuilder, entry: AxisBody, choice: Sequence[int]
    ):
        self.builder = builder
        self.entry = entry
        self.choice = choice

    def plan(self) -> AxisPlan:
        """The plan for the entry, with those for all that it calls."""
        return plan_of(
            self.entry,
            lambda node: self._chosen(node).strategy,
            lambda port: self._ways(port)[0],
            self._results(self.entry),
        )

    def _chosen(self, node: Node[A]) -> A:
        """What was chosen for a node."""
        return node.strategies[self.choice[self.builder.graph.nodes[node]]]

    def _ways(self, port: AxisPort) -> Ways:
        return self._chosen(port.node).ways(port.result)

    def _results(self, entry: AxisBody) -> tuple[Placement, ...]:
        """How the program's results leave it: those that update an argument like it."""
        updates, found = self.builder.program.updates, list[Placement]()
        last = return_op(entry.function)
        for i, value in enumerate(last.operands):
            if i in updates:
                found.append(self._chosen(entry.arguments[updates[i]]).placement)
                continue
            ways = [*self._ways(entry.ports[value]), *self._taken(entry, value)]
            info = self.builder.program.info(last)
            leaving = self.builder.moves.leaving(info, i, ways)
            placement = min(leaving, key=lambda p: (leaving[p], str(p)))
            found.append(WHOLE if placement.kind == "partial" else placement)
        return tuple(found)

    def _taken(self, entry: AxisBody, value: SSAValue) -> Iterator[Placement]:
        """The placements in which the program's ops take a value."""
        for use in value.uses:
            node = entry.ops.get(use.operation)
            if node is not None:
                yield self._chosen(node).strategy.operands[use.index]
