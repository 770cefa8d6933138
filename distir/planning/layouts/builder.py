"""Builds the graph of layout strategies of a sequential program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import ConstrainOp, Layout, Shard
from distir.dialects.tensors import shape_of
from distir.planning.axes.axis_op import AxisOp
from distir.planning.axes.runs import RunLengths
from distir.planning.axes.sharding_plan import ShardingPlan
from distir.planning.costs.cost_model import CostModel
from distir.planning.costs.unit import UnitCosts
from distir.planning.graph.bodies import Body
from distir.planning.graph.function_plan import FunctionPlan
from distir.planning.graph.nodes import Node, Port
from distir.planning.graph.strategies import (
    LayoutStrategy,
    Option,
    Strategy,
    options,
    strategies,
)
from distir.planning.graph.tied_ops import call_kinds
from distir.planning.graph.written_plan import WrittenPlan
from distir.planning.layouts.argument_requests import (
    ArgumentRequest,
    requests_of,
    restricted,
    split_over_time,
)
from distir.planning.layouts.building import Before, Building
from distir.planning.layouts.lifetimes import Interval
from distir.planning.layouts.partial_values import without_impossible
from distir.planning.layouts.reshards import (
    LayoutBody,
    LayoutNode,
    LayoutPort,
    ReshardGraph,
)
from distir.planning.layouts.sends import StagesOfOps
from distir.planning.layouts.values import Values
from distir.program import describe, reachable_functions
from distir.sharding.decompose import decompose
from distir.sharding.layout import check_layout, layout_problem
from distir.sharding.mesh import TIME_AXIS
from distir.sharding.rule import Rule, rule_for
from distir.sharding.signatures import Signatures
from distir.solver.clock import Clock


def _parts(
    op: Operation, strategy: LayoutStrategy
) -> list[tuple[Operation, LayoutStrategy]]:
    ops = decompose(op)
    assert ops is not None
    return list(zip(ops, strategy.parts, strict=True))


def cost_of_parts(
    op: Operation, strategy: LayoutStrategy, cost_model: CostModel
) -> float:
    """
    Returns the cost of the ops of an op's decomposition, including the reshards between
    them, such as reductions of partial values.
    """
    total = 0.0
    made: dict[SSAValue, Layout] = {}
    for part, layouts in _parts(op, strategy):
        for value, layout in zip(part.operands, layouts.operands, strict=True):
            before = made.get(value, layout)
            if before != layout:
                total += cost_model.reshard(value.type, before, layout)
                made[value] = layout  # for the ops behind it, too
        made |= zip(part.results, layouts.results, strict=True)
        total += cost_model.op(part, rule_for(part), layouts)
    return total


def bytes_between_parts(
    op: Operation, strategy: LayoutStrategy, cost_model: CostModel
) -> int:
    """
    Returns the bytes of the values that the ops of an op's decomposition pass to each
    other.
    """
    return sum(
        cost_model.bytes(result.type, layout)
        for part, layouts in _parts(op, strategy)[:-1]
        if part.operands  # constants are counted once for the whole program
        for result, layout in zip(part.results, layouts.results, strict=True)
    )


class GraphBuilder:
    """
    Builds the graph of layout strategies of a program.

    - `reachable`: the functions that the entry function calls, directly or not, the
      entry function last;
    - `requests`: the requests for the layouts of the entry function's arguments, by
      index;
    - `tie_layers`: whether repeated calls share their choices (`tied_ops`);
    - `clock`: TimeIsOver is raised when it stops;
    - `stages`: the pipeline stages of the ops, if the graph includes the costs of sends
      between them;
    - `intervals`: the lifetimes of values, computed at their first use.

    If the first mesh axis is the micro-batch axis, the splits over it follow from the
    inputs, and `build` must receive them as `before`. The cost of work on one
    micro-batch is then multiplied by the number of micro-batches.
    """

    def __init__(
        self,
        reachable: Sequence[FuncOp],
        cost_model: CostModel,
        requests: Mapping[int, ArgumentRequest],
        *,
        tie_layers: bool,
        clock: Clock | None = None,
        stages: StagesOfOps | None = None,
    ):
        self.functions = {f.sym_name.data: f for f in reachable}
        self.entry = reachable[-1]
        self.mesh = cost_model.mesh
        self.tie_layers = tie_layers
        self.cost_model = cost_model
        self.clock = clock or Clock()
        graph = ReshardGraph(cost_model, self.clock)
        self.building = Building(cost_model, requests, graph, stages=stages)
        self.signatures = Signatures()
        self.rules: dict[Operation, Rule] = {
            op: rule_for(op)
            for function in reachable
            for op in function.body.block.ops
            if not isinstance(op, CallOp | ReturnOp | ConstrainOp)
        }
        self.axis_options = self._axis_options(reachable)
        self._workspaces: dict[tuple[Operation, LayoutStrategy], float] = {}
        self.intervals: dict[LayoutBody, list[Interval]] = {}
        self._alternatives: dict[
            tuple[Operation, tuple[Option, ...], int],
            tuple[Sequence[LayoutStrategy], Sequence[float]],
        ] = {}

    def _axis_options(
        self, reachable: Sequence[FuncOp]
    ) -> dict[Operation, list[list[Option]]]:
        found: dict[Operation, list[list[Option]]] = {op: [] for op in self.rules}
        for axis, _ in self.mesh.axes:
            if axis == TIME_AXIS:
                found = {op: [[None]] for op in self.rules}
                continue
            runs = RunLengths(reachable, self._on_axis(axis)).runs
            every = {
                op: options(op, rule, self.mesh, axis, runs.get(op, ()))
                for op, rule in self.rules.items()
            }
            for op, own in without_impossible(reachable, self.rules, every).items():
                found[op].append(own)
        return found

    def _on_axis(self, axis: str) -> Callable[[Operation], AxisOp | None]:
        """
        Returns a function that maps an op to its strategies on `axis` alone, or to None
        for ops without a rule, such as calls.
        """
        found: dict[int, AxisOp] = {}
        costs = UnitCosts(self.mesh)

        def info(op: Operation) -> AxisOp | None:
            if op not in self.rules:
                return None
            kind = self.signatures.of(op)
            if kind not in found:
                whole = Strategy.whole(op, self.mesh)
                found[kind] = AxisOp(op, self.rules[op], whole, costs, axis)
            return found[kind]

        return info

    def alternatives_of_all(self) -> int:
        """
        Returns an upper bound of the number of alternatives of all ops together if all
        mesh axes are chosen at once.
        """
        return sum(prod(map(len, options)) for options in self.axis_options.values())

    def build(self, axes: int, before: Before | None = None) -> LayoutBody:
        """
        Builds the graph of choices for the first `axes` mesh axes. The graph covers the
        entry function and all calls in it. The decisions in `before` are not changed.
        """
        graph = ReshardGraph(self.cost_model, self.clock)
        self.building = replace(
            self.building, graph=graph, axes=axes, before=before, node_times={}
        )
        return self._body(self.entry, 1, before.plan if before else None)

    @property
    def graph(self) -> ReshardGraph:
        """The graph of the most recent `build`."""
        return self.building.graph

    def is_sum(self, port: LayoutPort) -> bool:
        """
        Whether a value of the entry function is accumulated over several micro-batches.
        """
        return self.building.is_sum(port)

    def alternatives(
        self, op: Operation, before: LayoutStrategy | None
    ) -> tuple[Sequence[LayoutStrategy], Sequence[float]]:
        """
        Returns the strategies of an op and the cost of each. If `before` is given,
        returns only strategies that agree with it on the axes chosen earlier.
        """
        options = before.options if before else ()
        key = (op, options, self.building.axes)
        if key not in self._alternatives:
            self.clock.check()
            if isinstance(op, ConstrainOp):
                found = self._constrained(op)
                self._alternatives[key] = found, [0.0] * len(found)
            else:
                fixed = [[option] for option in options]
                per_axis = [
                    *fixed,
                    *self.axis_options[op][len(fixed) : self.building.axes],
                ]
                found = strategies(op, self.rules[op], self.mesh, per_axis)
                costs = [self._cost(op, self.rules[op], s) for s in found]
                self._alternatives[key] = found, costs
        found, costs = self._alternatives[key]
        if before is None:
            return found, costs
        kept = [i for i, s in enumerate(found) if self._keeps(s, before)]
        return [found[i] for i in kept], [costs[i] for i in kept]

    def _keeps(self, strategy: LayoutStrategy, before: LayoutStrategy) -> bool:
        """
        Whether a strategy agrees with `before` on the axes that were chosen earlier.
        """
        fixed = self.building.axes_before()
        layouts = zip(
            strategy.operands + strategy.results,
            before.operands + before.results,
            strict=True,
        )
        return all(restricted(new, fixed) == old for new, old in layouts)

    def _cost(self, op: Operation, rule: Rule, strategy: LayoutStrategy) -> float:
        if not strategy.parts:
            return self.cost_model.op(op, rule, strategy)
        return cost_of_parts(op, strategy, self.cost_model)

    def workspace(self, op: Operation, strategy: LayoutStrategy) -> float:
        """
        Returns the bytes of temporary memory that an op needs while it runs, besides
        its operands and results.
        """
        key = op, strategy
        if key not in self._workspaces:
            self._workspaces[key] = self._workspace(op, strategy)
        return self._workspaces[key]

    def _workspace(self, op: Operation, strategy: LayoutStrategy) -> float:
        if strategy.parts:
            return bytes_between_parts(op, strategy, self.cost_model)
        if isinstance(op, ConstrainOp):
            return 0
        return self.cost_model.workspace(op, self.rules[op], strategy)

    def constant_bytes(self) -> int:
        """
        Returns the bytes of the constants. Every device holds all of them all the time.
        """
        whole = Layout(self.mesh.name)
        return sum(
            self.cost_model.bytes(op.results[0].type, whole)
            for op in self.rules
            if op.name == "onnx.Constant"
        )

    def _constrained(self, op: ConstrainOp) -> list[LayoutStrategy]:
        """
        Returns the strategies of a constraint. The constraint fixes the layout on some
        axes. Each axis that it does not fix may split any dimension, or no dimension.
        Raises DistIRError if no layout is possible.
        """
        base, shape = op.layout.data, shape_of(op.source.type)
        rank = len(shape)
        active = [axis for axis, _ in self.mesh.axes[: self.building.axes]]
        base = restricted(base, set(active))
        free = [axis for axis in active if not op.fixes(axis)]
        found: list[LayoutStrategy] = []
        for dims in product(range(-1, rank), repeat=len(free)):
            layout = base
            for axis, dim in zip(free, dims, strict=True):
                if dim >= 0:
                    layout = layout.with_dim(dim, (*layout.dim(dim), Shard(axis)), rank)
            if not layout_problem(shape, layout, self.mesh):
                found.append(Strategy((), (layout,), (layout,)))
        if not found:
            check_layout(shape, base, self.mesh, describe(op))
        return found

    def _body(
        self, function: FuncOp, count: int, before: FunctionPlan[Layout] | None
    ) -> LayoutBody:
        body: LayoutBody = Body(function, count)
        is_entry = function is self.entry

        def of_call(call: CallOp, calls: int, _: int) -> LayoutBody:
            known = before.calls[call] if before else None
            times = self._times_of_call(known) if is_entry else 1
            callee = self.functions[call.callee.string_value()]
            inner = self._body(callee, count * calls * times, known)
            self.building.node_times.update(dict.fromkeys(inner.arguments, times))
            return inner

        def of_op(op: Operation) -> tuple[LayoutNode, int]:
            known = before.ops[op] if before else None
            node, times = Node(describe(op), *self.alternatives(op, known)), 1
            if is_entry and node.strategies:
                first = node.strategies[0]
                times = self.building.times((*first.operands, *first.results))
                self.building.node_times[node] = times
            return node, times

        calls = call_kinds(function, ends=1 if self.tie_layers else None)
        body.add_ops(self.graph, calls, self.signatures.of, of_call, of_op)
        for op, node in body.ops.items():
            for i, result in enumerate(op.results):
                self.graph.types[Port(node, i)] = result.type
        Values(self.building, body, before, is_entry).connect()
        return body

    def _times_of_call(self, before: FunctionPlan[Layout] | None) -> int:
        return 1 if before is None else self.building.times(before.arguments)


def work_size(reachable: Sequence[FuncOp]) -> int:
    """
    Returns the number of ops of a program; the ops of a function are counted once per
    call. The entry function is the last of `reachable`.
    """
    sizes: dict[str, int] = {}
    for function in reachable:
        sizes[function.sym_name.data] = sum(
            sizes[op.callee.string_value()] if isinstance(op, CallOp) else 1
            for op in function.body.block.ops
        )
    return sizes[reachable[-1].sym_name.data]


MAX_OPS = 2000
"""
In programs with more ops than this, repeated calls share their choices. The ops of a
function count once per call.
"""


@dataclass(frozen=True)
class LayoutGraph:
    """
    The graph builder of a program and the decisions that were made before the search.

    - `builder`: builds the graphs;
    - `first`: the decisions on the micro-batch axis; None if the mesh has no such axis;
    - `steps`: the plans for which the program was changed (see `ChosenLayouts`).
    """

    builder: GraphBuilder
    first: Before | None
    steps: tuple[WrittenPlan, ...]

    @staticmethod
    def of(
        module: ModuleOp,
        costs: CostModel,
        tie_layers: bool | None = None,
        clock: Clock | None = None,
        stages: StagesOfOps | None = None,
    ) -> LayoutGraph:
        """
        Returns the graph builder of a sequential program on the mesh of `costs`. The
        program may have annotations. `tie_layers` says whether repeated calls share
        their choices; if it is None, the size of the program decides. If `stages` is
        given, the graph includes the costs of sends between stages. Raises DistIRError
        if requests are invalid, and TimeIsOver if the clock stops.
        """
        mesh, requests, first = costs.mesh, requests_of(module), None
        if mesh.has_time:
            requests = split_over_time(module, mesh, requests)
        plan = ShardingPlan(module, mesh)  # refuses requests that no layout can meet
        if mesh.has_time:
            plan.add_axis(TIME_AXIS)
            first = Before(plan.plan, 1)
        reachable = reachable_functions(module)
        if tie_layers is None:
            tie_layers = work_size(reachable) > MAX_OPS
        builder = GraphBuilder(
            reachable,
            costs,
            requests,
            tie_layers=tie_layers,
            clock=clock,
            stages=stages,
        )
        return LayoutGraph(builder, first, tuple(plan.steps))
