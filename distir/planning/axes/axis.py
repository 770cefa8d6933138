"""The plan for one mesh axis: the graph of strategies solved, for every call of a program."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.planning.axes.builder import ProgramGraph
from distir.planning.axes.candidates import OpCandidates, OpLayouts
from distir.planning.axes.choices import ArgumentKey, FunctionChoice, OpChoice
from distir.planning.axes.costs import UnitCosts
from distir.planning.axes.graph import Body, Node, Port, Ways
from distir.planning.axes.policy import AxisPolicy
from distir.planning.axes.reach import Reach
from distir.sharding.mesh import Mesh
from distir.sharding.placement import WHOLE, Placement
from distir.sharding.signatures import Signatures
from distir.solver import solve


class AxisPlanner:
    """
    Plans one axis of a mesh after the axes before it.

    - `functions`: those of the program by name; `entry`: which one is entered;
    - `layouts`: what the axes before it do to each op;
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
        layouts: Mapping[Operation, OpLayouts],
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
        self.layouts = layouts
        self.updates = updates
        self._signatures = signatures
        self._infos: dict[Operation, OpCandidates] = {}
        self._candidates: dict[int, OpCandidates] = {}
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
            layouts = self.layouts.get(op)
            signature = self._signatures.of(op, layouts)
            found = self._candidates.get(signature)
            if found is None:
                rule = self._signatures.rule(op)
                found = OpCandidates(op, rule, layouts, self.mesh, self.axis)
                self._candidates[signature] = found
            self._infos[op] = found
        return found

    def solve(self, name: str, arguments: Sequence[ArgumentKey]) -> FunctionChoice:
        """The cheapest plan for the entry function, whose arguments come like that."""
        body = Reach(self.functions, self.policy).program(
            self.functions[name], arguments
        )
        program = ProgramGraph(self.policy, self.costs, self.updates)
        graph = program.build(body)
        self.nodes = len(graph.nodes)
        self.solution = solution = solve(graph.problem())
        chosen = dict(zip(graph.nodes, solution.choice, strict=True))
        return _Choices(program, body, chosen).of(body, solution.objective)


class _Choices:
    """Reads a solution: one choice for each way in which a function is called."""

    def __init__(self, program: ProgramGraph, entry: Body, chosen: Mapping[Node, int]):
        self.program = program
        self.entry = entry
        self.chosen = chosen
        self._of_body: dict[Body, FunctionChoice] = {}
        self._same: dict[Hashable, FunctionChoice] = {}

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

    def of(self, body: Body, cost: float = 0.0) -> FunctionChoice:
        """The choice for a body; bodies of a function that do the same share it."""
        if body in self._of_body:
            return self._of_body[body]
        ops: list[OpChoice] = []
        for op in body.function.body.block.ops:
            if isinstance(op, CallOp):
                callee = self.of(body.calls[op])
                choice = OpChoice(op, callee.arguments, callee.results, callee=callee)
            elif isinstance(op, ReturnOp):
                continue
            else:
                node = body.ops[op]
                s = node.strategies[self.chosen[node]]
                choice = OpChoice(
                    op, s.operands, s.results, s.factor, s.run, s.decompose
                )
            ops.append(choice)
        arguments = tuple(n.ways[0][self.chosen[n]][0] for n in body.nodes)
        results = (
            self._results(body, arguments)
            if body is self.entry
            else tuple(self._ways(port)[0] for port in body.returned)
        )
        name = body.function.sym_name.data
        key = (
            name,
            arguments,
            results,
            tuple((c.operands, c.results, c.factor, c.run, id(c.callee)) for c in ops),
        )
        found = self._same.get(key)
        if found is None:
            found = self._same[key] = FunctionChoice(
                name, cost, arguments, results, ops
            )
        self._of_body[body] = found
        return found
