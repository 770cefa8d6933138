"""From a sequential program to the graph of choices."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import product
from math import prod

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from distir.dialects.dist import ConstrainOp, Layout, Shard
from distir.errors import DistIRError
from distir.program import argument_names, describe, updated_arguments
from distir.sharding.layout import check_layout
from distir.sharding.mesh import Mesh
from distir.sharding.rule import Rule, rule_for, shape_of
from distir.sharding.search.graph import Body, Graph, Node, Port, Use, value_node
from distir.sharding.search.parts import bytes_between_parts, seconds_of_parts
from distir.sharding.search.prices import Prices
from distir.sharding.search.runs import RunLengths
from distir.sharding.search.sharing import call_kinds, op_kinds
from distir.sharding.search.strategies import (
    Option,
    Strategy,
    options,
    strategies,
)


@dataclass(frozen=True)
class Before:
    """What was chosen for the mesh's first axes."""

    body: Body
    chosen: Mapping[Node, Strategy]


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
        self.before: Before | None = None
        self.rules: dict[Operation, Rule] = {
            op: rule_for(op)
            for function in reachable
            for op in function.body.block.ops
            if not isinstance(op, CallOp | ReturnOp | ConstrainOp)
        }
        self.axis_options = self._axis_options(reachable)
        self.axes = 0
        self._alternatives: dict[
            tuple[Operation, tuple[Option, ...], int],
            tuple[Sequence[Strategy], Sequence[float]],
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

    def alternatives_of_all(self) -> int:
        """How many alternatives ops have when all axes are chosen together, at most."""
        return sum(prod(map(len, options)) for options in self.axis_options.values())

    def build(self, axes: int, before: Before | None = None) -> Body:
        """
        The choices of the entry, and in it those of all calls, for the mesh's first `axes`
        axes. What the axes that were chosen `before` do stays as it is.
        """
        self.graph = Graph(self.prices)
        self.axes = axes
        self.before = before
        return self._body(self.entry, 1, before.body if before else None)

    def still(self, layouts: Iterable[Layout], before: Layout) -> list[Layout]:
        """The layouts that keep what the axes chosen before do; `before` if there are none."""
        assert self.before is not None
        fixed = {axis for axis, _ in self.mesh.axes[: self.axes - 1]}
        return [x for x in layouts if restricted(x, fixed) == before] or [before]

    def alternatives(
        self, op: Operation, before: Strategy | None
    ) -> tuple[Sequence[Strategy], Sequence[float]]:
        """What an op can do, and the seconds that takes."""
        options = before.options if before else ()
        key = (op, options, self.axes)
        if key not in self._alternatives:
            if isinstance(op, ConstrainOp):
                found = self._constrained(op)
                self._alternatives[key] = found, [0.0] * len(found)
            else:
                fixed = [[option] for option in options]
                per_axis = [*fixed, *self.axis_options[op][len(fixed) : self.axes]]
                found = strategies(op, self.rules[op], self.mesh, per_axis)
                seconds = [self._seconds(op, self.rules[op], s) for s in found]
                self._alternatives[key] = found, seconds
        found, seconds = self._alternatives[key]
        if before is None:
            return found, seconds
        kept = [i for i, s in enumerate(found) if self._keeps(s, before)]
        return [found[i] for i in kept], [seconds[i] for i in kept]

    def _keeps(self, strategy: Strategy, before: Strategy) -> bool:
        """Whether the axes chosen before do the same."""
        fixed = {axis for axis, _ in self.mesh.axes[: self.axes - 1]}
        layouts = zip(
            strategy.operands + strategy.results,
            before.operands + before.results,
            strict=True,
        )
        return all(restricted(new, fixed) == old for new, old in layouts)

    def _seconds(self, op: Operation, rule: Rule, strategy: Strategy) -> float:
        if not strategy.parts:
            return self.prices.op(op, rule, strategy.operands, strategy.results)
        return seconds_of_parts(op, strategy, self.prices)

    def workspace(self, op: Operation, strategy: Strategy) -> float:
        """Bytes besides operands and results, while an op runs."""
        if strategy.parts:
            return bytes_between_parts(op, strategy, self.prices)
        if isinstance(op, ConstrainOp):
            return 0
        layouts = strategy.operands, strategy.results
        return self.prices.workspace(op, self.rules[op], *layouts)

    def constant_bytes(self) -> int:
        """Bytes of the constants, which every device holds all the time."""
        whole = Layout(self.mesh.name)
        return sum(
            self.prices.bytes(op.results[0].type, whole)
            for op in self.rules
            if op.name == "onnx.Constant"
        )

    def _constrained(self, op: ConstrainOp) -> list[Strategy]:
        """A request fixes what some axes do and leaves the others free."""
        base, shape = op.layout.data, shape_of(op.source.type)
        rank = len(shape)
        active = [axis for axis, _ in self.mesh.axes[: self.axes]]
        base = restricted(base, set(active))
        free = [axis for axis in active if not op.fixes(axis)]
        found: list[Strategy] = []
        for dims in product(range(-1, rank), repeat=len(free)):
            layout = base
            for axis, dim in zip(free, dims, strict=True):
                if dim >= 0:
                    layout = layout.with_dim(dim, (*layout.dim(dim), Shard(axis)), rank)
            try:
                check_layout(shape, layout, self.mesh, describe(op))
            except DistIRError:
                continue
            found.append(Strategy((), (layout,), (layout,)))
        if not found:
            check_layout(shape, base, self.mesh, describe(op))
        return found

    def _body(self, function: FuncOp, count: int, before: Body | None) -> Body:
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
                    known = before.calls[op] if before else None
                    callees[kind] = self._body(callee, count * sizes[kind], known)
                body.calls[op] = callees[kind]
            elif not isinstance(op, ReturnOp):
                kind = kinds[op]
                if kind not in nodes:
                    known = self.chosen_before(before.ops[op]) if before else None
                    nodes[kind] = Node(describe(op), *self.alternatives(op, known))
                body.ops[op] = node = self.graph.add(nodes[kind], count)
                for i, result in enumerate(op.results):
                    self.graph.types[Port(node, i)] = result.type
        _Values(self, body, before, function is self.entry).connect()
        return body

    def chosen_before(self, node: Node) -> Strategy:
        """What was chosen for the axes before."""
        assert self.before is not None
        return self.before.chosen[node]


class _Values:
    """Connects the nodes of one function along its values."""

    def __init__(
        self, builder: GraphBuilder, body: Body, before: Body | None, is_entry: bool
    ):
        self.builder = builder
        self.before = before
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
            active = {axis for axis, _ in self.builder.mesh.axes[: self.builder.axes]}
            wanted = {restricted(request, active)}
        key = (arg.type, request, frozenset(uses))
        if key not in self.shared or not uses:
            before = self.before.arguments[arg.index] if self.before else None
            self.shared[key] = value_node(name, self._ordered(wanted, before))
        node = self.graph.add(self.shared[key], self.body.count)
        self.graph.types[Port(node, 0)] = arg.type
        return node

    def _fan_out(self, value: SSAValue, port: Port, uses: Iterable[Use]) -> None:
        for use in uses:
            self.graph.connect(port, use, self.body.count)
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
                layout.without_partial(layout.partial_axes) for layout in port.layouts()
            }
            before = self.before.sinks[index] if self.before else None
            alternatives = self._ordered(layouts | {self.whole}, before)
            target = value_node(f"result {index}", alternatives)
            self.body.sinks[index] = self.graph.add(target, count)
            self.graph.types[Port(target, 0)] = value.type
        self.graph.connect(port, Use(target, (0,)), count)

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
        layouts = set(port.layouts())
        layouts = layouts.union(*(use.wanted() for use in uses))
        if layouts == {self.whole}:
            return port
        key = (port, frozenset(uses))
        if key not in self.shared:
            owner = value.owner
            assert isinstance(owner, Operation)
            what = f"the result of {describe(owner)}"
            before = self.before.kept.get(value) if self.before else None
            self.shared[key] = value_node(what, self._ordered(layouts, before))
        node = self.graph.add(self.shared[key], self.body.count)
        self.body.kept[value] = node
        self.graph.types[Port(node, 0)] = value.type
        self.graph.connect(port, Use(node, (0,)), self.body.count)
        return Port(node, 0)

    def _ordered(self, layouts: Iterable[Layout], before: Node | None) -> list[Layout]:
        """In the same order in every run, whole values first; like before, if given."""
        found = sorted(
            layouts, key=lambda x: (len(x.split_axes) + len(x.partial), str(x))
        )
        if before is None:
            if self.before is None:
                return found
            return self.builder.still(found, self.whole)
        return self.builder.still(found, self.builder.chosen_before(before).results[0])


def restricted(layout: Layout, axes: Set[str]) -> Layout:
    """What these axes do to a value with that layout."""
    return Layout(
        layout.mesh,
        tuple(tuple(s for s in dim if s.axis in axes) for dim in layout.dims),
        tuple(p for p in layout.partial if p[0] in axes),
    )


def work_size(reachable: Sequence[FuncOp]) -> int:
    """The ops of a program, those of a function once for each call; the entry is last."""
    sizes: dict[str, int] = {}
    for function in reachable:
        sizes[function.sym_name.data] = sum(
            sizes[op.callee.string_value()] if isinstance(op, CallOp) else 1
            for op in function.body.block.ops
        )
    return sizes[reachable[-1].sym_name.data]
