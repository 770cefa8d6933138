"""
Connects the nodes of a function's graph along its values, with the number of times per
step that each value passes along each edge.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from xdsl.dialects.builtin import TensorType
from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from distir.dialects.dist import Layout
from distir.dialects.tensors import shape_of
from distir.planning.graph.function_plan import FunctionPlan
from distir.planning.graph.nodes import Edge, Port
from distir.planning.layouts.building import Building
from distir.planning.layouts.reshards import (
    LayoutBody,
    LayoutNode,
    LayoutPort,
    Use,
    layouts_of,
    value_node,
)
from distir.planning.layouts.sends import StagesOfOps
from distir.program import argument_names, describe, linked_arguments
from distir.sharding.rule import is_made_by_users


class Values:
    """Connects the nodes of one function's graph along the function's values."""

    def __init__(
        self,
        building: Building,
        body: LayoutBody,
        before: FunctionPlan[Layout] | None,
        is_entry: bool,
    ):
        self.building = building
        self.before = before
        self.graph = building.graph
        self.body = body
        self.is_entry = is_entry
        self.updates = linked_arguments(body.function) if is_entry else {}
        self.whole = Layout(building.mesh.name)
        self.shared: dict[Hashable, LayoutNode] = {}

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
            body.results = [body.ports[v] for v in last.operands]
        elif self.building.stages is not None:
            self._send(self.building.stages)

    def _send(self, stages: StagesOfOps) -> None:
        """Adds the sends between pipeline stages to the graph."""
        for value, use in stages.sent(self.body.function):
            op, port = use.operation, self.body.ports[value]
            if isinstance(op, CallOp):
                taker = Use(self.body.calls[op].arguments[use.index], (0,))
            elif op in self.body.ops:
                taker = Use(self.body.ops[op], (use.index,))
            else:
                continue
            edge = Edge(port, taker)
            times = self.building.times(layouts_of(port))
            self.graph.sends[edge] = self.graph.sends.get(edge, 0) + times

    def _uses(self, value: SSAValue) -> list[Use]:
        """
        Returns the uses of `value` by ops and calls, without uses by the return. If an
        op has `value` as several operands, they are one use. If a call has `value` as
        several operands, each operand is a separate use.
        """
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

    def _argument(self, arg: BlockArgument, name: str) -> LayoutNode:
        uses = self._uses(arg)
        request = self.building.requests.get(arg.index) if self.is_entry else None
        wanted = set[Layout]().union(*(use.wanted() for use in uses))
        wanted.add(self.whole)
        if self.is_entry:
            wanted = {layout for layout in wanted if not layout.partial}
        if request is not None:
            active = {axis for axis, _ in self.building.mesh.axes[: self.building.axes]}
            wanted = request.among(
                wanted, active, shape_of(arg.type), self.building.mesh
            )
        key = (arg.type, request, frozenset(uses))
        if key not in self.shared or not uses:
            before = self.before.arguments[arg.index] if self.before else None
            node = value_node(name, self._ordered(wanted, before))
            if self.is_entry:
                node.costs = [
                    self.building.cost_model.argument(arg.type, s.results[0])
                    for s in node.strategies
                ]
            self.shared[key] = node
        node = self.graph.add(self.shared[key], self.body.count)
        self.graph.types[Port(node, 0)] = arg.type
        return node

    def _fan_out(self, value: SSAValue, port: LayoutPort, uses: Iterable[Use]) -> None:
        for use in uses:
            times = self.building.times_of_use(use) if self.is_entry else 1
            if times > 1 and self._ends_micro_batches(port, use):
                times = 1
            self.graph.connect(port, use, self.body.count * times)
        self.body.ports[value] = port
        if self.is_entry:
            for use in value.uses:
                if isinstance(use.operation, ReturnOp):
                    self._leave(value, port, use.index)

    def _leave(self, value: SSAValue, port: LayoutPort, index: int) -> None:
        """
        Connects the value of the program's result `index` to its final layout, in which
        nothing is partial. A result that updates an argument gets the argument's
        layout; for any other result, a node chooses the layout.
        """
        count = self.body.count
        if index in self.updates:
            target = self.body.arguments[self.updates[index]]
        else:
            layouts = {
                layout.without_partial(layout.partial_axes)
                for layout in layouts_of(port)
            }
            before = self.before.results[index] if self.before else None
            alternatives = self._ordered(layouts | {self.whole}, before)
            target = value_node(f"result {index}", alternatives)
            self.body.sinks[index] = self.graph.add(target, count)
            self.graph.types[Port(target, 0)] = value.type
        self.graph.connect(port, Use(target, (0,)), count)

    def _result(self, op: Operation, index: int, value: OpResult) -> None:
        if isinstance(op, CallOp):
            port = self.body.calls[op].results[index]
        else:
            port = Port(self.body.ops[op], index)
        uses = self._uses(value)
        returns = sum(isinstance(u.operation, ReturnOp) for u in value.uses)
        # A caller cannot make the result of a function again.
        if is_made_by_users(op) and (self.is_entry or not returns):
            self.graph.constants.add(port)
        elif len(uses) + returns > 1 and isinstance(value.type, TensorType):
            port = self._kept(value, port, uses)
        self._fan_out(value, port, uses)

    def _kept(
        self, value: OpResult, port: LayoutPort, uses: Sequence[Use]
    ) -> LayoutPort:
        """
        Returns the port (node and result) that gives `value` in the layout to which it
        is resharded once for all its uses. A node chooses this layout. Returns `port`
        if there is only one possible layout.
        """
        layouts = set(layouts_of(port))
        layouts = layouts.union(*(use.wanted() for use in uses))
        if len(layouts) == 1:
            return port
        key = (port, frozenset(uses))
        if key not in self.shared:
            what = f"the result of {describe(value.op)}"
            before = self.before.sharding_of(value) if self.before else None
            self.shared[key] = value_node(what, self._ordered(layouts, before))
        node = self.graph.add(self.shared[key], self.body.count)
        self.body.kept[value] = node
        self.graph.types[Port(node, 0)] = value.type
        self.graph.connect(
            port, Use(node, (0,)), self.body.count * self._times(port, uses)
        )
        return Port(node, 0)

    def _ends_micro_batches(self, port: LayoutPort, use: Use) -> bool:
        """
        Whether a use combines the results of all micro-batches, such as terms of a sum.
        It then runs once per step although the value is computed once per micro-batch.
        """
        times = self.building.times
        return times(layouts_of(port)) > 1 and times(use.wanted()) == 1

    def _times(self, port: LayoutPort, uses: Sequence[Use]) -> int:
        """
        Returns the number of times per step that a value is resharded to its stored
        layout. A value that all micro-batches share is resharded by each stage for each
        micro-batch, once in the forward pass and once in the backward pass.
        """
        if not self.is_entry:
            return 1
        own = self.building.times(layouts_of(port))
        if own > 1:
            return own
        times = [self.building.times_of_use(use) for use in uses]
        each = [n for n in times if n > 1]
        return sum(each[:2]) if each else 1

    def _ordered(
        self, layouts: Iterable[Layout], before: Layout | None
    ) -> list[Layout]:
        """
        Returns the layouts in a deterministic order, replicated ones first. If `before`
        is given, only the layouts that agree with it on the axes chosen earlier are
        kept.
        """
        found = sorted(
            layouts, key=lambda x: (len(x.split_axes) + len(x.partial), str(x))
        )
        return found if before is None else self.building.still(found, before)
