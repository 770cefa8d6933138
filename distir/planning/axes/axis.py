"""The plan for one mesh axis: the graph of strategies solved, for every call of a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from xdsl.ir import SSAValue

from distir.planning.axes.axis_plan import ArgumentKey, AxisPlan
from distir.planning.axes.builder import (
    AxisBody,
    AxisGraphBuilder,
    AxisNode,
    AxisPort,
)
from distir.planning.axes.candidates import AxisStrategy, Ways
from distir.planning.axes.policy import AxisPolicy
from distir.planning.axes.program import AxisProgram
from distir.planning.axes.reach import Reach
from distir.planning.unit_costs import UnitCosts
from distir.program import return_op
from distir.sharding.placement import WHOLE, Placement
from distir.solver import solve


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
        costs = UnitCosts(self.program.mesh.size(self.program.axis))
        builder = AxisGraphBuilder(self.policy, costs)
        body, graph = builder.build(reached), builder.graph
        self.nodes = len(graph.nodes)
        chosen = graph.chosen(solve(graph.problem()).choice)
        return _Choices(builder, body, chosen).of(body)


class _Choices:
    """Reads a solution: one plan for each way in which a function is called."""

    def __init__(
        self,
        builder: AxisGraphBuilder,
        entry: AxisBody,
        chosen: Mapping[AxisNode, AxisStrategy],
    ):
        self.builder = builder
        self.entry = entry
        self.chosen = chosen
        self._of_body: dict[AxisBody, AxisPlan] = {}

    def of(self, body: AxisBody) -> AxisPlan:
        """The plan for a body."""
        if body not in self._of_body:
            arguments = tuple(self.chosen[n].results[0] for n in body.arguments)
            self._of_body[body] = AxisPlan(
                body.function,
                arguments,
                self._results(body, arguments)
                if body is self.entry
                else tuple(self._ways(port)[0] for port in body.results),
                {op: self.chosen[node] for op, node in body.ops.items()},
                {call: self.of(callee) for call, callee in body.calls.items()},
            )
        return self._of_body[body]

    def _ways(self, port: AxisPort) -> Ways:
        return self.chosen[port.node].ways(port.result)

    def _results(
        self, entry: AxisBody, arguments: Sequence[Placement]
    ) -> tuple[Placement, ...]:
        """How the program's results leave it: those that update an argument like it."""
        updates, found = self.builder.program.updates, list[Placement]()
        last = return_op(entry.function)
        for i, value in enumerate(last.operands):
            if i in updates:
                found.append(arguments[updates[i]])
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
                yield self.chosen[node].operands[use.index]
