"""Builds the graph of a program's strategies on one mesh axis."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from xdsl.dialects.func import CallOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from distir.planning.axes.alternatives import (
    Alternative,
    Available,
    Cut,
    OpAlternative,
    Source,
    Take,
    ValueAlternative,
)
from distir.planning.axes.edge_costs import (
    EdgeCosts,
    Kept,
    Leaving,
    Passed,
    Replaced,
    Returned,
    Taken,
    ValueUse,
    availability_of,
)
from distir.planning.axes.policy import AxisPolicy
from distir.planning.axes.reach import Alternatives, ArgumentFacts, Reached
from distir.planning.costs.unit import PREFERENCE
from distir.planning.graph.bodies import Body
from distir.planning.graph.nodes import Node, Port, StrategyGraph
from distir.program import return_op
from distir.sharding.placement import (
    FREE,
    REPLICATED,
    PartialPlacement,
    Placement,
    SplitPlacement,
)

ValueNode = Node[ValueAlternative]
AxisPort = Port[Alternative]
AxisBody = Body[OpAlternative, ValueAlternative]


class OpUse(NamedTuple):
    """A use of a value as one operand of an op."""

    op: Operation
    node: Node[OpAlternative]
    operand: int

    def wanted(self) -> list[Placement]:
        """Returns the placement in which each alternative of the op takes the value."""
        return [s.strategy.operands[self.operand] for s in self.node.strategies]


class CallUse(NamedTuple):
    """A use of a value by a call. `node` is the node of the callee's argument."""

    op: Operation
    node: ValueNode
    operand: int

    def wanted(self) -> list[Placement]:
        """
        Returns the placement in which each alternative of the argument takes the value.
        """
        return [s.placement for s in self.node.strategies]


OperandUse = OpUse | CallUse


class AxisGraphBuilder:
    """
    Builds the graph of a program on one mesh axis. `policy` describes the purpose of
    the axis. Before the graph is built, `Reach` must have found the strategies of the
    ops.
    """

    def __init__(self, policy: AxisPolicy):
        self.policy = policy
        self.program = policy.program
        self.edge_costs = EdgeCosts(policy)
        self.graph: StrategyGraph[Alternative, ValueUse] = StrategyGraph(
            self.edge_costs.cost
        )
        self._shared: dict[Hashable, ValueNode] = {}
        self._held: dict[Hashable, ValueNode | None] = {}

    def build(self, entry: Reached) -> AxisBody:
        """
        Builds the graph of choices of the entry function and of all functions that it
        calls.
        """
        body = self._body(entry, 1, 0)
        self._leave(body)
        return body

    def _body(self, reached: Reached, count: int, position: int) -> AxisBody:
        """
        Builds the choices of a function for one kind of call. The program has `count`
        calls of this kind. `position` counts the kinds of calls of the function in
        program order, to break ties between equal plans.
        """
        body = AxisBody(reached.function, count)
        body.add_ops(
            self.graph,
            reached.calls,
            lambda op: (self.program.info(op), reached.strategies[op]),
            lambda call, n, at: self._body(reached.calls[call], count * n, at),
            lambda op: (self._op(op, reached.strategies[op], position), 1),
        )
        block = reached.function.body.block
        uses, returns = _uses(body), _returns(body)
        for arg, facts in zip(block.args, reached.arguments, strict=True):
            node = self._argument(arg, facts, uses.get(arg, ()))
            body.arguments.append(self.graph.add(node, count))
        results: dict[int, AxisPort] = {}
        late = self.policy.late(body.function.sym_name.data)
        for value in [*block.args, *(r for op in block.ops for r in op.results)]:
            if value.first_use is not None:
                own = uses.get(value, ()), returns.get(value, ())
                self._connect(reached, body, value, *own, value in late, results)
        body.results += [results[i] for i in sorted(results)]
        return body

    def _op(
        self, op: Operation, strategies: Alternatives[OpAlternative], position: int
    ) -> Node[OpAlternative]:
        costs = np.array([s.cost for s in strategies])
        # Of equal plans, prefer the one that splits earlier.
        return Node(op.name, strategies, costs * (1 + PREFERENCE / (1 + position)))

    def _argument(
        self, arg: SSAValue, facts: ArgumentFacts, uses: Sequence[OperandUse]
    ) -> ValueNode:
        """
        Returns the node of an argument. Arguments with the same possible placements and
        the same uses share one node.
        """
        possible = dict(facts.possible)
        if FREE in possible:
            del possible[FREE]
            for use in uses:
                possible |= {
                    p: None for p in use.wanted() if not isinstance(p, PartialPlacement)
                }
            possible[REPLICATED] = None
        ordered = tuple(sorted(possible, key=lambda p: p != REPLICATED))
        key: Hashable = ordered  # where nothing is to be chosen
        if len(ordered) > 1 and arg.first_use is not None:
            key = ordered, facts.source, tuple(use[1:] for use in uses) or facts
        if key not in self._shared:
            strategies = Alternatives(ValueAlternative((p,)) for p in ordered)
            self._shared[key] = self._value("argument", strategies)
        return self._shared[key]

    def _value(
        self,
        what: str,
        strategies: Alternatives[ValueAlternative],
        costs: Sequence[float] = (),
    ) -> ValueNode:
        return Node(what, strategies, np.array(costs or [0.0] * len(strategies)))

    def _port(self, body: AxisBody, value: SSAValue) -> AxisPort:
        """
        Returns the port of `value`, which is the node that computes the value and the
        index of the node's result.
        """
        # Not `isinstance`, which is slow where the answer is no.
        if type(value) is BlockArgument:
            return Port(body.arguments[value.index], 0)
        assert type(value) is OpResult
        node = body.ops.get(value.op)
        if node is not None:
            return Port(node, value.index)
        assert isinstance(value.op, CallOp)
        return body.calls[value.op].results[value.index]

    def _size(
        self, value: SSAValue, uses: Sequence[OperandUse], source: Source
    ) -> float:
        """
        Returns the bytes that move when a value changes its placement. For an argument,
        this is the maximum over its uses, because the axes planned before this one may
        have gathered the argument for some uses.
        """
        if isinstance(value, OpResult):
            return self.program.info(value.op).result_bytes[value.index]
        sizes = (
            self.edge_costs.size(self.program.info(use.op), use.operand, source)
            for use in uses
        )
        return max(sizes, default=0.0)

    def _connect(
        self,
        reached: Reached,
        body: AxisBody,
        value: SSAValue,
        uses: Sequence[OperandUse],
        returns: Sequence[int],
        late: bool,
        results: dict[int, AxisPort],
    ) -> None:
        """
        Connects a value with its uses by ops and calls. `returns` are the indices of
        the function's results that are this value; the port of the value is added to
        `results` at these indices. `late` says whether the value's partial sums are
        reduced late.
        """
        port, count = self._port(body, value), body.count
        source = reached.sources.get(value, "activation")
        if len(uses) + len(returns) > 1:
            key = port, tuple(use[1:] for use in uses), bool(returns), late, source
            if key not in self._held:
                size = self._size(value, uses, source)
                wanted = self._wanted_often(uses, bool(returns))
                cuts = [] if value in reached.sources else self._cuts(uses)
                self._held[key] = self._hold(port, size, wanted, cuts, late)
            node = self._held[key]
            if node is not None:
                self.graph.connect(port, Kept(self.graph.add(node, count)), count)
                port = Port(node, 0)
        body.ports[value] = port
        has_cuts = _has_cuts(port)
        is_free = FREE in reached.possible[value]
        for position, use in enumerate(uses):
            info, at = self.program.info(use.op), position if has_cuts else -1
            is_first = is_free and use.op is uses[0].op
            if isinstance(use, CallUse):
                move: ValueUse = Passed(use.node, info, use.operand, at, is_first)
            else:
                how = info, use.operand, at, is_first, late, source
                move = Taken(use.node, *how)
            self.graph.connect(port, move, count)
        for i in returns if body.function is not self.program.entry else ():
            results[i] = self._return(body, port, i, len(uses))

    def _hold(
        self,
        port: AxisPort,
        size: float,
        wanted: Sequence[Placement],
        cuts: Sequence[Cut],
        late: bool,
    ) -> ValueNode | None:
        """
        Returns the node that chooses the placements in which a value is kept for all
        its uses. Returns None if there is nothing to choose, because the value can be
        kept only whole and uncut.
        """
        available: dict[tuple[Available, Cut | None], float] = {}
        for (have,) in dict.fromkeys(availability_of(port)):
            found: dict[Available, float] = {(have,): 0.0}
            if have != REPLICATED and not (late and isinstance(have, PartialPlacement)):
                found[have, REPLICATED] = self.edge_costs.move(have, REPLICATED, size)
            if isinstance(have, SplitPlacement):
                for q in wanted:
                    if q != have:
                        found[have, q] = self.edge_costs.move(have, q, size)
            for way, cost in found.items():
                available[way, None] = cost
                if not isinstance(have, SplitPlacement) or REPLICATED in way:
                    for cut in cuts:
                        if cut.placement != have:
                            available[way, cut] = cost
        if all(w == (REPLICATED,) and cut is None for w, cut in available):
            return None
        strategies = Alternatives(ValueAlternative(*way) for way in available)
        return self._value("value", strategies, list(available.values()))

    def _cuts(self, uses: Sequence[OperandUse]) -> list[Cut]:
        """
        Returns the parts that one use may cut out of a value and that a later use also
        takes.
        """
        found: list[Cut] = []
        for position, use in enumerate(uses):
            if isinstance(use, CallUse):
                continue
            others = (u for u in uses[position + 1 :] if isinstance(u, OpUse))
            behind = {p for other in others for p in other.wanted()}
            for s in use.node.strategies:
                p = s.strategy.operands[use.operand]
                cut = Cut(p, position)
                if (
                    s.takes[use.operand] is Take.CUT
                    and isinstance(p, SplitPlacement)
                    and p in behind
                    and cut not in found
                ):
                    found.append(cut)
        return found

    def _wanted_often(
        self, uses: Sequence[OperandUse], returned: bool
    ) -> list[Placement]:
        """
        Returns the splits to which one use may move a value and that a later use also
        takes. If the function returns the value (`returned`), the list has every split
        to which a use may move the value, because the value may leave the function in
        each of these splits.
        """
        found: dict[Placement, None] = {}
        behind: set[Placement] = set()
        for use in reversed(uses):
            for s in use.node.strategies if isinstance(use, OpUse) else ():
                p = s.strategy.operands[use.operand]
                moves = s.takes[use.operand] in (Take.MOVED, Take.CUT)
                if (
                    isinstance(p, SplitPlacement)
                    and moves
                    and (returned or p in behind)
                ):
                    found[p] = None
            behind.update(use.wanted())
        return list(found)

    def _return(
        self, body: AxisBody, port: AxisPort, index: int, uses: int
    ) -> AxisPort:
        """
        Returns the port (a node and the index of its result) of a value that leaves its
        function as result `index`. `uses` is the number of uses of the value in the
        function.
        """
        info = self.program.info(return_op(body.function))
        rows = self.edge_costs.returned(port, info, index, uses)
        same = rows == [{p: 0.0} for (p, *_) in availability_of(port)]
        if same and not _has_cuts(port):
            return port
        available = dict.fromkeys((p,) for row in rows for p in row)
        node = self._value("result", Alternatives(map(ValueAlternative, available)))
        self.graph.add(node, body.count)
        self.graph.connect(port, Returned(node, info, index, uses), body.count)
        return Port(node, 0)

    def _leave(self, body: AxisBody) -> None:
        """
        Connects the results of the program to their final placement. A result that
        updates an argument gets the argument's placement.
        """
        last = return_op(body.function)
        info = self.program.info(last)
        for i, value in enumerate(last.operands):
            port = body.ports[value]
            if i in self.program.updates:
                target = body.arguments[self.program.updates[i]]
                self.graph.connect(port, Replaced(target, info, i), 1)
            else:
                sink = self._value(
                    "a result", Alternatives([ValueAlternative((REPLICATED,))])
                )
                self.graph.connect(port, Leaving(self.graph.add(sink, 1), info, i), 1)


def _has_cuts(port: AxisPort) -> bool:
    """
    Whether any alternative of the value lets one use cut a part out of the value, so
    that later uses can take this part.
    """
    return any(isinstance(s, ValueAlternative) and s.cut for s in port.node.strategies)


def _uses(body: AxisBody) -> dict[SSAValue, list[OperandUse]]:
    """
    Returns the uses of each value of a function by ops and calls, in program order.
    Returns are left out. The choices of the function's ops and calls must have been
    built.
    """
    found: dict[SSAValue, list[OperandUse]] = {}
    for op in body.function.body.block.ops:
        callee = body.calls[op] if type(op) is CallOp else None
        node = body.ops.get(op)
        for i, value in enumerate(op.operands):
            if callee is not None:
                use = CallUse(op, callee.arguments[i], i)
            elif node is not None:
                use = OpUse(op, node, i)
            else:
                break
            found.setdefault(value, []).append(use)
    return found


def _returns(body: AxisBody) -> dict[SSAValue, list[int]]:
    """
    Maps each value that a function returns to the indices of the results that are this
    value, the last index first.
    """
    found: dict[SSAValue, list[int]] = {}
    returned = return_op(body.function).operands
    for index in reversed(range(len(returned))):
        found.setdefault(returned[index], []).append(index)
    return found
