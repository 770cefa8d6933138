"""The plan for one mesh axis: the graph of strategies solved, for every call of a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from distir.planning.axes.axis_plan import ArgumentKey, AxisPlan
from distir.planning.axes.builder import ProgramGraph
from distir.planning.axes.candidates import OpCandidates
from distir.planning.axes.graph import Body, Node, Port, Ways
from distir.planning.axes.policy import AxisPolicy
from distir.planning.axes.reach import Reach
from distir.planning.strategies import Strategy
from distir.planning.unit_costs import UnitCosts
from distir.sharding.mesh import Mesh
from distir.sharding.placement import WHOLE, Placement
from distir.sharding.signatures import Signatures
from distir.solver import solve


class AxisPlanner:
    """
    Plans one axis of a mesh after the axes before it.

    - `functions`: those of the program by name; `entry`: which one is entered;
    - `strategies`: what the axes before it do to each op, also to calls and returns;
    - `updates`: results of the entry function that replace an argument in the next step, by
      index; they are placed like it;
    - `split_parameters`, `is_forward`: see `AxisPolicy`;
    - `signatures`: says which ops are alike.
    """

    def __init__(
        self,
        functions: Mapping[str, FuncOp],
        entry: str,
        mesh: Mesh,
        axis: str,
        strategies: Mapping[Operation, Strategy],
        *,
        split_parameters: bool,
        updates: Mapping[int, int],
        signatures: Signatures,
        is_forward: bool = False,
    ):
        self.functions = functions
        self.entry = entry
        self.mesh = mesh
        self.axis = axis
        self.strategies = strategies
        self.updates = updates
        self._signatures = signatures
        self._infos: dict[Operation, OpCandidates] = {}
        self._candidates: dict[tuple[int, Strategy], OpCandidates] = {}
        self.policy = AxisPolicy(
            functions,
            entry,
            axis,
            self.info,
            split_parameters=split_parameters,
            is_forward=is_forward,
        )
        self.costs = UnitCosts(mesh.size(axis))
        self.nodes = 0
        """How many choices there were."""

    def info(self, op: Operation) -> OpCandidates:
        """The op's rule and what it can split on this axis."""
        found = self._infos.get(op)
        if found is None:
            before = self.strategies[op]
            signature = self._signatures.of(op), before
            found = self._candidates.get(signature)
            if found is None:
                rule = self._signatures.rule(op)
                found = OpCandidates(op, rule, before, self.mesh, self.axis)
                self._candidates[signature] = found
            self._infos[op] = found
        return found

    def solve(self, name: str, arguments: Sequence[ArgumentKey]) -> AxisPlan:
        """The cheapest plan for the entry function, whose arguments come like that."""
        body = Reach(self.functions, self.policy).program(
            self.functions[name], arguments
        )
        program = ProgramGraph(self.policy, self.costs, self.updates)
        graph = program.build(body)
        self.nodes = len(graph.nodes)
        chosen = dict(zip(graph.nodes, solve(graph.problem()).choice, strict=True))
        return _Choices(program, body, chosen).of(body)


class _Choices:
    """Reads a solution: one choice for each way in which a function is called."""

    def __init__(self, program: ProgramGraph, entry: Body, chosen: Mapping[Node, int]):
        self.program = program
        self.entry = entry
        self.chosen = chosen
        self._of_body: dict[Body, AxisPlan] = {}

    def _ways(self, port: Port) -> Ways:
        return port.ways[self.chosen[port.node]]

    def _results(
        self, entry: Body, arguments: Sequence[Placement]
    ) -> tuple[Placement, ...]:
        """How the program's results leave it: those that update an argument like it."""
        updates, found = self.program.updates, list[Placement]()
        for i, value in enumerate(entry.last.operands):
            ways = [*self._ways(entry.ports[value]), *self._taken(entry, value)]
            if i in updates:
                found.append(arguments[updates[i]])
            else:
                leaving = self.program.moves.leaving(entry, i, ways)
                placement = min(leaving, key=lambda p: (leaving[p], str(p)))
                found.append(WHOLE if placement.kind == "partial" else placement)
        return tuple(found)

    def _taken(self, entry: Body, value: SSAValue) -> Iterator[Placement]:
        """The placements in which the program's ops take a value."""
        for use in value.uses:
            node = entry.ops.get(use.operation)
            if node is not None:
                yield node.strategies[self.chosen[node]].operands[use.index]

    def of(self, body: Body) -> AxisPlan:
        """The plan for a body."""
        if body not in self._of_body:
            ops = {
                op: node.strategies[self.chosen[node]] for op, node in body.ops.items()
            }
            calls = {call: self.of(callee) for call, callee in body.calls.items()}
            arguments = tuple(n.ways[0][self.chosen[n]][0] for n in body.nodes)
            results = (
                self._results(body, arguments)
                if body is self.entry
                else tuple(self._ways(port)[0] for port in body.returned)
            )
            self._of_body[body] = AxisPlan(
                body.function, arguments, results, ops, calls
            )
        return self._of_body[body]
