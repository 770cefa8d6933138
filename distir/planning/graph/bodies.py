"""
The choices in the functions of a program, as nodes of a graph, and the conversion of a
solution of the graph into a plan.
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
"""The types of alternatives: W for nodes of ops, V for nodes of values."""


@dataclass(eq=False)
class Body(Generic[W, V]):
    """
    The choices in one function, shared by `count` calls of the function.

    - `count`: the number of runs of the function that share the choices;
    - `ops`, `arguments`: the nodes of the ops and of the arguments; `calls`: the body
      of the callee of each call;
    - `ports`: for each value, the node, with the index of its result, that the uses of
      the value read;
    - `kept`: the nodes of the values for which all uses take one common layout;
    - `results`: the ports of the values that the function returns; empty for the entry
      function.
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
    """
    The nodes of those results of the entry function that update no argument, by result
    index.
    """

    def add_ops(
        self,
        graph: StrategyGraph[Any, Any],
        calls: Mapping[CallOp, Hashable],
        alike: Callable[[Operation], Hashable],
        of_call: Callable[[CallOp, int, int], Body[W, V]],
        of_op: Callable[[Operation], tuple[Node[W], int]],
    ) -> None:
        """
        Adds the choices of the function's ops and calls to a graph. Ops that are alike,
        and calls of the same kind, share their choices (`op_kinds`). `of_call(call,
        count, place)` builds the body that `count` calls share; `place` is the number
        of bodies built before for calls in this function. `of_op` returns the node of
        an op, and the number of times that the op counts for each run of the function.
        """
        kinds, sizes = op_kinds(self.function, calls, alike), Counter(calls.values())
        bodies: dict[Hashable, Body[W, V]] = {}
        nodes: dict[Hashable, tuple[Node[W], int]] = {}
        for op in self.function.body.block.ops:
            if type(op) is CallOp:
                kind = calls[op]
                if kind not in bodies:
                    bodies[kind] = of_call(op, sizes[kind], len(bodies))
                self.calls[op] = bodies[kind]
            elif type(op) is not ReturnOp:
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
    Converts a solution of the graph into a plan. `strategy` gives the strategy chosen
    for the node of an op, and `sharding` the sharding chosen for a value. `results` are
    the shardings of the results of the entry function.
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
