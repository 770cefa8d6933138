"""From a sequential program to the graph of choices."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import product

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from distir.dialects.dist import ConstrainOp, Layout, Shard
from distir.errors import DistIRError
from distir.program import argument_names, describe, updated_arguments
from distir.sharding.decompose import decompose
from distir.sharding.layout import check_layout
from distir.sharding.mesh import Mesh
from distir.sharding.rule import Rule, rule_for, shape_of
from distir.sharding.search.graph import Body, Graph, Node, Port, Use, value_node
from distir.sharding.search.prices import Prices
from distir.sharding.search.runs import RunLengths
from distir.sharding.search.sharing import call_kinds, op_kinds
from distir.sharding.search.strategies import (
    Option,
    Strategy,
    options,
    strategies,
)

MAX_STRATEGIES = 64
"""More combinations of axes than that for one op: the axes are chosen one by one."""


class GraphBuilder:
    """
    - `functions`: those that the entry reaches, the entry last;
    - `requests`: layouts that arguments of the entry must have, by index;
    - `share`: whether repeated calls share their choices (`sharing.py`).
    """

    def __init__(
        self,
        reachable: Sequence[FuncOp],
        mesh: Mesh,
        prices: Prices,
        requests: Mapping[int, Layout],
        *,
        share: bool,
    ):
        self.functions = {f.sym_name.data: f for f in reachable}
        self.entry = reachable[-1]
        self.mesh = mesh
        self.requests = requests
        self.share = share
        self.prices = prices
        self.graph = Graph(prices)
        self.rules: dict[Operation, Rule] = {
            op: rule_for(op)
            for function in reachable
            for op in function.body.block.ops
            if not isinstance(op, CallOp | ReturnOp | ConstrainOp)
        }
        self.axis_options = self._axis_options(reachable)
        self._alternatives: dict[
            Operation, tuple[Sequence[Strategy], Sequence[float]]
        ] = {}

    def _axis_options(
        self, reachable: Sequence[FuncOp]
    ) -> dict[Operation, list[list[Option]]]:
        found: dict[Operation, list[list[Option]]] = {op: [] for op in self.rules}
        for axis, _ in self.mesh.axes:
            runs = RunLengths(reachable, self.rules, self.mesh, axis).spread()
            for op, rule in self.rules.items():
                found[op].append(options(op, rule, self.mesh, axis, runs.get(op, ())))
        return found

    def build(self) -> Body:
        """The choices of the entry, and in it those of all calls."""
        return self._body(self.entry, 1)

    def alternatives(
        self, op: Operation
    ) -> tuple[Sequence[Strategy], Sequence[float]]:
        """What an op can do, and the seconds that takes."""
        if op not in self._alternatives:
            if isinstance(op, ConstrainOp):
                found = self._constrained(op)
                self._alternatives[op] = found, [0.0] * len(found)
            else:
                rule = self.rules[op]
                chosen = strategies(op, rule, self.mesh, self.axis_options[op])
                seconds = [self._seconds(op, rule, s) for s in chosen]
                self._alternatives[op] = chosen, seconds
        return self._alternatives[op]

    def _seconds(self, op: Operation, rule: Rule, strategy: Strategy) -> float:
        if not strategy.parts:
            return self.prices.op(op, rule, strategy.operands, strategy.results)
        parts = decompose(op)
        assert parts is not None
        product, last = strategy.parts[0], strategy.parts[-1]
        seconds = self.prices.reshard(
            parts[0].results[0].type, product.results[0], last.operands[0]
        )
        for part, layouts in zip(parts, strategy.parts, strict=True):
            seconds += self.prices.op(part, rule_for(part), *layouts)
        return seconds

    def _constrained(self, op: ConstrainOp) -> list[Strategy]:
        """A request fixes what some axes do and leaves the others free."""
        base, shape = op.layout.data, shape_of(op.source.type)
        rank = len(shape)
        free = [axis for axis, _ in self.mesh.axes if not op.fixes(axis)]
        found: list[Strategy] = []
        for dims in product(range(-1, rank), repeat=len(free)):
            layout = base
            for axis, dim in zip(free, dims, strict=True):
                if dim >= 0:
                    layout = layout.with_dim(
                        dim, (*layout.dim(dim), Shard(axis)), rank
                    )
            try:
                check_layout(shape, layout, self.mesh, describe(op))
            except DistIRError:
                continue
            found.append(Strategy((), (layout,), (layout,)))
        if not found:
            check_layout(shape, base, self.mesh, describe(op))
        return found

    def _body(self, function: FuncOp, count: int) -> Body:
        body = Body(function, count)
        calls = call_kinds(function, share=self.share)
        kinds = op_kinds(function, calls)
        callees: dict[Hashable, Body] = {}
        nodes: dict[Hashable, Node] = {}
        sizes: dict[Hashable, int] = {}
        for kind in calls.values():
            sizes[kind] = sizes.get(kind, 0) + 1
        for op in function.body.block.ops:
            if isinstance(op, CallOp):
                kind = calls[op]
                if kind not in callees:
                    callee = self.functions[op.callee.string_value()]
                    callees[kind] = self._body(callee, count * sizes[kind])
                body.calls[op] = callees[kind]
            elif not isinstance(op, ReturnOp):
                kind = kinds[op]
                if kind not in nodes:
                    nodes[kind] = Node(describe(op), *self.alternatives(op))
                body.ops[op] = self.graph.add(nodes[kind], count)
        _Values(self, body, function is self.entry).connect()
        return body


class _Values:
    """Connects the nodes of one function along its values."""

    def __init__(self, builder: GraphBuilder, body: Body, is_entry: bool):
        self.builder = builder
        self.graph = builder.graph
        self.body = body
        self.is_entry = is_entry
        self.updates = updated_arguments(body.function) if is_entry else {}
        self.whole = Layout(builder.mesh.name)
        self.shared: dict[Hashable, Node] = {}
        self.returned: dict[SSAValue, Port] = {}

    def connect(self) -> None:
        body = self.body
        block = body.function.body.block
        last = block.last_op
        assert isinstance(last, ReturnOp)
        names = argument_names(body.function)
        for arg in block.args:
            body.arguments.append(self._argument(arg, names[arg.index]))
        for arg, node in zip(block.args, body.arguments, strict=True):
            self._fan_out(arg, Port(node, 0), self._uses(arg))
        for op in block.ops:
            if isinstance(op, ReturnOp):
                continue
            for index, result in enumerate(op.results):
                self._result(op, index, result)
        if not self.is_entry:
            body.results = [self.returned[v] for v in last.operands]

    def _uses(self, value: SSAValue) -> list[Use]:
        """The uses of a value by ops and calls, each op once."""
        operands: dict[Operation, list[int]] = {}
        for use in value.uses:
            operands.setdefault(use.operation, []).append(use.index)
        found: list[Use] = []
        for op, indices in operands.items():
            if isinstance(op, CallOp):
                callee = self.body.calls[op]
                found += [Use(callee.arguments[i], (0,)) for i in indices]
            elif op in self.body.ops:
                found.append(Use(self.body.ops[op], tuple(sorted(indices))))
        return found

    def _argument(self, arg: BlockArgument, name: str) -> Node:
        uses = self._uses(arg)
        request = self.builder.requests.get(arg.index) if self.is_entry else None
        wanted = set[Layout]().union(*(use.wanted() for use in uses))
        wanted.add(self.whole)
        if self.is_entry:
            wanted = {layout for layout in wanted if not layout.partial}
        if request is not None:
            wanted = {request}
        key = (arg.type, request, frozenset(uses))
        if key not in self.shared or not uses:
            self.shared[key] = value_node(name, _ordered(wanted))
        return self.graph.add(self.shared[key], self.body.count)

    def _fan_out(self, value: SSAValue, port: Port, uses: Iterable[Use]) -> None:
        for use in uses:
            self.graph.connect(value.type, port, use, self.body.count)
        self.returned[value] = port
        if self.is_entry:
            for use in value.uses:
                if isinstance(use.operation, ReturnOp):
                    self._leave(value, port, use.index)

    def _leave(self, value: SSAValue, port: Port, index: int) -> None:
        """A result of the program is reduced; one that updates an argument is like it."""
        count = self.body.count
        if index in self.updates:
            target = self.body.arguments[self.updates[index]]
        else:
            layouts = {
                layout.without_partial(layout.partial_axes)
                for layout in port.node.layouts(port.index)
            }
            target = value_node(f"result {index}", _ordered(layouts | {self.whole}))
            self.body.sinks[index] = self.graph.add(target, count)
        self.graph.connect(value.type, port, Use(target, (0,)), count)

    def _result(self, op: Operation, index: int, value: SSAValue) -> None:
        if isinstance(op, CallOp):
            port = self.body.calls[op].results[index]
        else:
            port = Port(self.body.ops[op], index)
        uses = self._uses(value)
        returns = sum(isinstance(u.operation, ReturnOp) for u in value.uses)
        if len(uses) + returns > 1 and isinstance(value.type, TensorType):
            port = self._kept(value, port, uses)
        self._fan_out(value, port, uses)

    def _kept(self, value: SSAValue, port: Port, uses: Sequence[Use]) -> Port:
        """The layout that a value is brought to once for all that use it."""
        layouts = set(port.node.layouts(port.index))
        layouts = layouts.union(*(use.wanted() for use in uses))
        if layouts == {self.whole}:
            return port
        key = (port, frozenset(uses))
        if key not in self.shared:
            owner = value.owner
            assert isinstance(owner, Operation)
            what = f"what follows {describe(owner)}"
            self.shared[key] = value_node(what, _ordered(layouts))
        node = self.graph.add(self.shared[key], self.body.count)
        self.body.kept[value] = node
        self.graph.connect(value.type, port, Use(node, (0,)), self.body.count)
        return Port(node, 0)


def _ordered(layouts: Iterable[Layout]) -> list[Layout]:
    """In the same order in every run; whole values first."""
    return sorted(layouts, key=lambda x: (len(x.split_axes) + len(x.partial), str(x)))
