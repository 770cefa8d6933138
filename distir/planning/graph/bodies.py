"""
The choices in the functions of a program, as nodes of a graph, and the plan that a solution
means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, OpResult, SSAValue

from distir.planning.graph.function_plan import FunctionPlan
from distir.planning.graph.nodes import Node, Port, StrategyGraph
from distir.planning.graph.strategies import Sharding, Strategy
from distir.planning.graph.tied_ops import op_kinds

W = TypeVar("W")
V = TypeVar("V")
"""The kinds of alternatives: W of the nodes of ops, V of those of values."""


@dataclass(eq=False)
class Body(Generic[W, V]):
    """
    The choices in a function, for all calls of it that share them.

    - `count`: how many such calls run;
    - `ops`, `calls`, `arguments`: the nodes of its ops and arguments, and the body of each
      callee;
    - `ports`: where each value comes from, for its uses;
    - `kept`: the ports of values that are brought to one layout for all their uses;
    - `results`: the ports of what it returns; empty for the entry.
    """

    function: FuncOp
    count: int
    ops: dict[Operation, Node[W]] = field(default_factory=dict[Operation, Node[W]])
    calls: dict[CallOp, Body[W, V]] = field(default_factory=dict[CallOp, "Body[W, V]"])
    arguments: list[Node[V]] = field(default_factory=list[Node[V]])
    ports: dict[SSAValue, Port[W | V]] = field(
        default_factory=dict[SSAValue, Port[W | V]]
    )
    kept: dict[OpResult, Node[V]] = field(default_factory=dict[OpResult, Node[V]])
    results: list[Port[W | V]] = field(default_factory=list[Port[W | V]])
    sinks: dict[int, Node[V]] = field(default_factory=dict[int, Node[V]])
    """The nodes of results of the entry that update no argument, by index."""

    def add_ops(
        self,
        graph: StrategyGraph[Any, Any],
        calls: Mapping[CallOp, Hashable],
        alike: Callable[[Operation], Hashable],
        of_call: Callable[[CallOp, int, int], Body[W, V]],
        of_op: Callable[[Operation], tuple[Node[W], int]],
    ) -> None:
        """
        Adds the choices of the function's ops and calls to a graph; ops and calls that are
        alike (`op_kinds`) share them. `of_call(call, count, place)` builds the body that
        `count` calls share; `place` counts the bodies that calls of this function had
        before it. `of_op` makes the node of an op and says how often the op takes it each
        time that the function runs.
        """
        kinds, sizes = op_kinds(self.function, calls, alike), Counter(calls.values())
        bodies: dict[Hashable, Body[W, V]] = {}
        nodes: dict[Hashable, tuple[Node[W], int]] = {}
        for op in self.function.body.block.ops:
            if isinstance(op, CallOp):
                kind = calls[op]
                if kind not in bodies:
                    bodies[kind] = of_call(op, sizes[kind], len(bodies))
                self.calls[op] = bodies[kind]
            elif not isinstance(op, ReturnOp):
                if kinds[op] not in nodes:
                    nodes[kinds[op]] = of_op(op)
                node, times = nodes[kinds[op]]
                self.ops[op] = graph.add(node, self.count * times)


def plan_of(
    entry: Body[W, V],
    strategy: Callable[[Node[W]], Strategy[Sharding]],
    sharding: Callable[[Port[W | V]], Sharding],
    results: Sequence[Sharding],
) -> FunctionPlan[Sharding]:
    """
    Returns the plan in which every op follows the strategy chosen for its node and every
    value has the sharding chosen for it; `results` are those of the entry's results.
    """
    plans: dict[Body[W, V], FunctionPlan[Sharding]] = {}

    def plan(body: Body[W, V]) -> FunctionPlan[Sharding]:
        if body not in plans:
            plans[body] = FunctionPlan(
                body.function,
                [sharding(Port(node, 0)) for node in body.arguments],
                results if body is entry else [sharding(p) for p in body.results],
                {op: strategy(node) for op, node in body.ops.items()},
                {call: plan(callee) for call, callee in body.calls.items()},
                {value: sharding(Port(node, 0)) for value, node in body.kept.items()},
            )
        return plans[body]

    return plan(entry)
