"""What splitting the batch over time does, as what was chosen before the other axes."""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import LAYOUT, Layout, LayoutAttr
from distir.planning.annotations import requested_layout
from distir.planning.axes.sharding_plan import ShardingPlan
from distir.planning.batches import split_batch
from distir.planning.function_plan import FunctionPlan
from distir.planning.graph import Body, Node
from distir.planning.layouts.builder import Before
from distir.planning.layouts.reshards import (
    LayoutBody,
    LayoutNode,
    value_node,
)
from distir.planning.strategies import Strategy
from distir.program import (
    argument_attributes,
    describe,
    entry_function,
    linked_arguments,
    set_argument_attributes,
)
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.rule import rank_of


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
    split_batch(module, TIME_AXIS)
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
    chosen: dict[LayoutNode, Strategy] = {}
    bodies: dict[FunctionPlan, LayoutBody] = {}

    def value(layout: Layout) -> LayoutNode:
        node = value_node("", [layout])
        chosen[node] = node.strategies[0]
        return node

    def body_of(function: FunctionPlan) -> LayoutBody:
        if function in bodies:
            return bodies[function]
        body = bodies[function] = Body(function.function, 0)
        body.arguments += [value(layout) for layout in function.arguments]
        for op, strategy in function.ops.items():
            node = body.ops[op] = Node(describe(op), [strategy], [0.0])
            chosen[node] = strategy
            body.kept.update(zip(op.results, map(value, strategy.results), strict=True))
        for call, callee in function.calls.items():
            body.calls[call] = body_of(callee)
            body.kept.update(zip(call.results, map(value, callee.results), strict=True))
        return body

    entry = body_of(plan.plan)
    updates = linked_arguments(plan.entry)
    entry.sinks |= {
        i: value(layout)
        for i, layout in enumerate(plan.plan.results)
        if i not in updates
    }
    return Before(entry, chosen, 1)
