"""From a program to the graph of what can be done with it on one mesh axis."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import inf

import numpy as np
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from distir.planning.axes.candidates import Take
from distir.planning.axes.graph import (
    ArgumentFacts,
    Body,
    Cut,
    Floats,
    Node,
    Port,
    StrategyGraph,
    Use,
    Ways,
)
from distir.planning.axes.moves import Moves
from distir.planning.axes.policy import AxisPolicy
from distir.planning.axes.sharing import value_kinds
from distir.planning.unit_costs import PREFERENCE, UnitCosts
from distir.sharding.placement import FREE, WHOLE, Placement


class ProgramGraph:
    """
    Builds the graph of a program whose ops have their strategies (`Reach`).

    - `policy`: what the axis is asked for; `costs`: what strategies and changes of layout
      cost;
    - `updates`: results of the entry that replace an argument in the next step, by index.
    """

    def __init__(
        self, policy: AxisPolicy, costs: UnitCosts, updates: Mapping[int, int]
    ):
        self.policy = policy
        self.costs = costs
        self.info = policy.info
        self.updates = updates
        self.moves = Moves(policy, costs)
        self.graph = StrategyGraph()
        self._op_costs: dict[tuple[int, int], Floats] = {}
        self._shared: dict[Hashable, Node] = {}
        self._orders: dict[FuncOp, Mapping[Operation, int]] = {}

    def build(self, body: Body) -> StrategyGraph:
        """The graph of a whole program; `body` is its entry's."""
        self._count(body, 1)
        self._body(body, True)
        return self.graph

    def _count(self, body: Body, count: int) -> None:
        body.count += count
        for callee in body.calls.values():
            self._count(callee, count)

    def _body(self, body: Body, is_entry: bool) -> None:
        for place, callee in enumerate(dict.fromkeys(body.calls.values())):
            callee.place = place
            self._body(callee, False)
        block = body.function.body.block
        kinds = value_kinds(body, self.info)
        for op in block.ops:
            if isinstance(op, CallOp | ReturnOp):
                continue
            kind = kinds.get(op)
            node = self._shared.get(kind) if kind is not None else None
            if node is None:
                node = self._op(body, op)
                if kind is not None:
                    self._shared[kind] = node
            node.count += body.count
            body.ops[op] = node
        for arg, facts in zip(block.args, body.arguments, strict=True):
            kind: Hashable = None
            if len(facts.possible) == 1 and FREE not in facts.possible:
                kind = ("fixed", *facts.possible)  # nothing is chosen
            elif arg.first_use is None:
                kind = ("unused", *facts.possible)
            elif arg in kinds:
                kind = ("argument", id(body), kinds[arg])
            node = self._shared.get(kind) if kind is not None else None
            if node is None:
                node = self._argument(facts, self._uses(body, arg))
                if kind is not None:
                    self._shared[kind] = node
            node.count += body.count
            body.nodes.append(node)
        for value in self._values(body):
            if value.first_use is not None:
                self._connect(body, value, is_entry)
        if is_entry:
            self._leave(body)

    def _values(self, body: Body) -> list[SSAValue]:
        block = body.function.body.block
        return [*block.args, *(r for op in block.ops for r in op.results)]

    def _op(self, body: Body, op: Operation) -> Node:
        strategies, info = body.strategies[op], self.info(op)
        key = (id(info), id(strategies))
        if key not in self._op_costs:
            self._op_costs[key] = np.array([self.costs.op(s) for s in strategies])
        ways = [
            tuple((s.results[i],) for s in strategies) for i in range(len(op.results))
        ]
        # Of equal plans the one is meant that splits earlier.
        costs = self._op_costs[key] * (1 + PREFERENCE / (1 + body.place))
        return self.graph.node(op.name, ways, costs, strategies)

    def _uses(self, body: Body, value: SSAValue) -> list[Use]:
        """The uses of a value inside its function but for returns, in program order."""
        found: list[Use] = []
        for use in value.uses:
            op, index = use.operation, use.index
            if isinstance(op, CallOp):
                found.append(Use(op, body.calls[op].nodes[index], index, True))
            elif op in body.ops:
                found.append(Use(op, body.ops[op], index, False))
        if len(found) > 1:
            order = self._order(body.function)
            found.sort(key=lambda use: (order[use.op], use.operand))
        return found

    def _order(self, function: FuncOp) -> Mapping[Operation, int]:
        if function not in self._orders:
            ops = function.body.block.ops
            self._orders[function] = {op: i for i, op in enumerate(ops)}
        return self._orders[function]

    def _wanted(self, uses: Sequence[Use]) -> dict[Placement, None]:
        wanted: dict[Placement, None] = {}
        for use in uses:
            if use.is_call:
                wanted |= dict.fromkeys(w[0] for w in use.node.ways[0])
            else:
                wanted |= dict.fromkeys(
                    s.operands[use.operand] for s in use.node.strategies
                )
        return wanted

    def _argument(self, facts: ArgumentFacts, uses: Sequence[Use]) -> Node:
        possible = dict(facts.possible)
        if FREE in possible:
            del possible[FREE]
            possible |= {p: None for p in self._wanted(uses) if p.kind != "partial"}
            possible[WHOLE] = None
        ordered = sorted(possible, key=lambda p: p != WHOLE)
        ways = [tuple((p,) for p in ordered)]
        return self.graph.node("argument", ways, np.zeros(len(ordered)))

    def _port(self, body: Body, value: SSAValue) -> Port:
        """Where a value is made."""
        if isinstance(value, BlockArgument):
            return Port(body.nodes[value.index], 0)
        assert isinstance(value, OpResult)
        if isinstance(value.op, CallOp):
            return body.calls[value.op].returned[value.index]
        return Port(body.ops[value.op], value.index)

    def _size(self, value: SSAValue, uses: Sequence[Use]) -> float:
        """
        Bytes of a value where it is brought to another placement: axes before may have
        brought it together for those that use it.
        """
        if isinstance(value, OpResult):
            return self.info(value.op).result_bytes[value.index]
        sizes = (self.info(use.op).operand_bytes[use.operand] for use in uses)
        return max(sizes, default=0.0)

    def _connect(self, body: Body, value: SSAValue, is_entry: bool) -> None:
        port = self._port(body, value)
        returns = [u.index for u in value.uses if isinstance(u.operation, ReturnOp)]
        uses = self._uses(body, value)
        if len(uses) + len(returns) > 1:
            port = self._held(body, value, port, uses, bool(returns))
        body.ports[value] = port
        facts = (
            value in self.policy.late(body.function.sym_name.data),
            body.sources.get(value, "activation"),
        )
        is_free = FREE in body.possible[value]
        for place, use in enumerate(uses):
            first = is_free and use.op is uses[0].op
            matrix = self.moves.edge(port, place, use, (*facts, first))
            self.graph.connect(port.node, use.node, matrix, body.count)
        if returns and not is_entry:
            self._return(body, value, port, returns)

    def _held(
        self,
        body: Body,
        value: SSAValue,
        port: Port,
        uses: Sequence[Use],
        returned: bool,
    ) -> Port:
        """The ways in which a value is there for all that use it."""
        made = list(dict.fromkeys(port.ways))
        late = value in self.policy.late(body.function.sym_name.data)
        key = (
            "held",
            port,
            tuple((u.node.number, u.operand, u.is_call) for u in uses),
            late,
        )
        node = self._shared.get(key)
        if node is None:
            ways: dict[tuple[Ways, Cut | None], float] = {}
            is_derived = value in body.sources
            cuts = [] if is_derived else self._cuts(uses)
            size = self._size(value, uses)
            wanted = self._wanted_often(uses, returned)
            for (have,) in made:
                found: dict[Ways, float] = {(have,): 0.0}
                if have != WHOLE and not (late and have.kind == "partial"):
                    found[have, WHOLE] = self.costs.move(have, WHOLE, size)
                if have.kind == "split":
                    for q in wanted:
                        if q != have:
                            found[have, q] = self.costs.move(have, q, size)
                for way, cost in found.items():
                    ways[way, None] = cost
                    if have.kind != "split" or WHOLE in way:
                        for cut in cuts:
                            if cut.placement != have:
                                ways[way, cut] = cost
            if all(w == (WHOLE,) and cut is None for w, cut in ways):
                return port
            node = self.graph.node(
                "value",
                [tuple(w for w, _ in ways)],
                np.array(list(ways.values())),
            )
            node.cuts = tuple(cut for _, cut in ways)
            self._shared[key] = node
        node.count += body.count
        matrix = self.moves.made(port, node)
        self.graph.connect(port.node, node, matrix, body.count)
        return Port(node, 0)

    def _cuts(self, uses: Sequence[Use]) -> list[Cut]:
        """The parts that a use may make of a value which help those behind it."""
        found: list[Cut] = []
        for place, use in enumerate(uses):
            behind = {
                s.operands[u.operand]
                for u in uses[place + 1 :]
                if not u.is_call
                for s in u.node.strategies
            }
            for s in use.node.strategies if not use.is_call else ():
                p = s.operands[use.operand]
                cut = Cut(p, place)
                if (
                    s.takes[use.operand] is Take.CUT
                    and p.kind == "split"
                    and p in behind
                    and cut not in found
                ):
                    found.append(cut)
        return found

    def _wanted_often(self, uses: Sequence[Use], returned: bool) -> list[Placement]:
        """
        The splits that a use may move a value to which others behind it want too; a value
        that is returned may leave in any.
        """
        found: dict[Placement, None] = {}
        behind: set[Placement] = set()
        for use in reversed(uses):
            if use.is_call:
                behind |= {w[0] for w in use.node.ways[0]}
                continue
            for s in use.node.strategies:
                p = s.operands[use.operand]
                moves = s.takes[use.operand] in (Take.MOVED, Take.CUT)
                if p.kind == "split" and moves and (returned or p in behind):
                    found[p] = None
            behind |= {s.operands[use.operand] for s in use.node.strategies}
        return list(found)

    def _return(
        self, body: Body, value: SSAValue, port: Port, returns: Sequence[int]
    ) -> None:
        """How a value leaves its function."""
        while len(body.returned) < len(body.last.operands):
            body.returned.append(port)
        there = [w for w, _ in self.moves.there(port, len(self._uses(body, value)))]
        for i in returns:
            rows = [self.moves.leaving(body, i, w) for w in there]
            same = rows == [{p: 0.0} for (p, *_) in port.ways]
            if same and not any(port.node.cuts):
                body.returned[i] = port
                continue
            ways = dict.fromkeys((p,) for row in rows for p in row)
            node = self.graph.node("result", [tuple(ways)], np.zeros(len(ways)))
            node.count = body.count
            matrix = np.array([[row.get(p, inf) for (p,) in ways] for row in rows])
            self.graph.connect(port.node, node, matrix, body.count)
            body.returned[i] = Port(node, 0)

    def _leave(self, body: Body) -> None:
        """Results of the program; one that updates an argument is placed like it."""
        last = body.last
        for i, value in enumerate(last.operands):
            port = body.ports[value]
            size = self.info(last).operand_bytes[i]
            if i in self.updates:
                target = body.nodes[self.updates[i]]
                matrix = np.array(
                    [
                        [
                            self.moves.take(
                                w, q[0], Take.CUT, size, False, "activation"
                            )
                            for q in target.ways[0]
                        ]
                        for w in port.ways
                    ]
                )
                self.graph.connect(port.node, target, matrix, body.count)
                continue
            costs = np.array([self.moves.result(body, i, w) for w in port.ways])
            self.graph.charge(port.node, costs, body.count)
