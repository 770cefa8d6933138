"""What splitting the batch over time does, as what was chosen before the other axes."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import Operation

from distir.dialects.dist import LAYOUT, ConstrainOp, Layout, LayoutAttr
from distir.errors import DistIRError
from distir.passes.data_parallel import DataParallelPass
from distir.planning.annotations import requested_layout
from distir.planning.axes.candidates import (
    OpLayouts,
)
from distir.planning.axes.sharding_plan import ShardingPlan
from distir.planning.layouts.builder import (
    Before,
)
from distir.planning.layouts.graph import (
    Body,
    Node,
    value_node,
)
from distir.planning.layouts.strategies import (
    NOTHING,
    Option,
    Strategy,
    strategies,
)
from distir.program import (
    argument_attributes,
    describe,
    entry_function,
    reachable_functions,
    return_op,
    set_argument_attributes,
    updated_arguments,
)
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.rule import Rule, rank_of, rule_for


def has_time(mesh: Mesh) -> bool:
    """Whether a mesh has the axis over time; it is the first one then."""
    return bool(mesh.axes) and mesh.axes[0][0] == TIME_AXIS


def split_over_time(
    module: ModuleOp, mesh: Mesh, requests: Mapping[int, Layout]
) -> dict[int, Layout]:
    """
    Annotates the inputs and labels that have the batch with a split over time, outside the
    splits that are requested of arguments of the entry, by index. Gives the requests with
    that split.
    """
    function = entry_function(module)
    attributes = argument_attributes(function)
    for entry in attributes:
        entry.pop(LAYOUT, None)
    set_argument_attributes(function, attributes)
    DataParallelPass(TIME_AXIS).apply(Context(), module)
    attributes = argument_attributes(function)
    found: dict[int, Layout] = {}
    for i, request in requests.items():
        over_time = requested_layout(attributes[i]) or Layout(mesh.name)
        rank = rank_of(function.function_type.inputs.data[i])
        dims = zip(over_time.full_dims(rank), request.full_dims(rank), strict=True)
        layout = Layout(mesh.name, tuple((*outer, *inner) for outer, inner in dims))
        found[i] = layout
        attributes[i][LAYOUT] = LayoutAttr(layout)
    set_argument_attributes(function, attributes)
    return found


def before_devices(plan: ShardingPlan) -> Before:
    """
    What the axis over time does to a program whose inputs are annotated. Functions that
    are called both with micro-batches and without are cloned.
    """
    plan.add_axis(TIME_AXIS)
    chosen: dict[Node, Strategy] = {}
    bodies: dict[str, Body] = {}

    def value(layout: Layout) -> Node:
        node = value_node("", [layout])
        chosen[node] = node.strategies[0]
        return node

    for function in reachable_functions(plan.module):
        body = bodies[function.sym_name.data] = Body(function, 0)
        body.arguments += [value(layout) for layout in plan.arguments[function]]
        for op in function.body.block.ops:
            if isinstance(op, ReturnOp):
                continue
            if isinstance(op, CallOp):
                body.calls[op] = bodies[op.callee.string_value()]
            else:
                strategy = _strategy(op, plan)
                node = body.ops[op] = Node(describe(op), [strategy], [0.0])
                chosen[node] = strategy
            for result, layout in zip(op.results, plan.ops[op].results, strict=True):
                body.kept[result] = value(layout)
    entry = bodies[plan.entry.sym_name.data]
    returned = plan.ops[return_op(plan.entry)].operands
    updates = updated_arguments(plan.entry)
    entry.sinks |= {
        i: value(layout) for i, layout in enumerate(returned) if i not in updates
    }
    return Before(entry, chosen, 1)


def _strategy(op: Operation, plan: ShardingPlan) -> Strategy:
    """What was chosen for an op, as one of its strategies. Raises DistIRError."""
    layouts = plan.ops[op]
    if isinstance(op, ConstrainOp):
        return Strategy((), tuple(layouts.operands), tuple(layouts.results))
    rule = rule_for(op)
    option = _option(rule, layouts)
    for strategy in strategies(op, rule, plan.mesh, [[option]]):
        if not strategy.parts:
            return strategy
    raise DistIRError(
        f"{describe(op)} cannot work on micro-batches in the layouts "
        f"{', '.join(map(str, layouts.operands))}"
    )


def _option(rule: Rule, layouts: OpLayouts) -> Option:
    """What the axis over time does to an op."""
    for factor, shards in layouts.assignment.items():
        return Option(factor, shards[0].run)
    partial = {i: x.partial for i, x in enumerate(layouts.operands) if x.partial}
    for index, linear in enumerate(rule.linear):
        if partial and linear.operands == frozenset(partial):
            ((_, monoid),) = partial[min(partial)]
            return Option(linear=index, monoid=monoid)
    return NOTHING
