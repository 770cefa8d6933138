"""Chooses the parameters to split over a mesh axis, from the sharding rules alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, BlockArgument

from distir.dialects.dist import LAYOUT, Layout, layout_attr
from distir.dialects.dist_attributes import GRADIENT_OF
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import rank_of, shape_of
from distir.planning.annotations import (
    add_notes,
    axis_mesh,
    fixed_axes,
    requested_layout,
)
from distir.planning.axes.sharding_plan import ShardingPlan
from distir.planning.graph.function_plan import AxisPlan, with_callees
from distir.planning.graph.strategies import SplitFactor
from distir.program import (
    argument_attributes,
    argument_roles,
    describe,
    entry_function,
    forward_results,
    gradients_of_results,
    is_training_step,
    parameters_of_states,
    set_argument_attributes,
)
from distir.sharding.layout import canonical, fits
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.placement import SplitPlacement, add_placement, placement_in
from distir.sharding.signatures import (
    Signatures,
)
from distir.transforms.slicing import sliced

_NAMED = 3
"""The maximal number of ops that one note names."""


def left_whole(
    plan: AxisPlan, mesh: Mesh, axis: str, signatures: Signatures
) -> list[str]:
    """
    Returns notes about the contractions that the axis does not split. One note lists
    the contractions with sizes that the axis does not divide. Another note lists the
    contractions for which a split would cost more communication than it saves work. If
    the axis splits no contraction at all, a single note says so.
    """
    parts = mesh.size(axis)
    on = f"axis {axis!r} of size {parts}"
    undivided: dict[str, None] = {}
    unwanted: dict[str, None] = {}
    sizes: set[int] = set()
    is_split = False
    for own in with_callees(plan):
        for op, strategy in own.ops.items():
            rule = signatures.rule(op)
            if not rule.flops:
                continue
            if isinstance(strategy.options[0], SplitFactor):
                is_split = True
                continue
            odd = {f.size for f in rule.factors if f.kind != "replicate"}
            odd = {size for size in odd if size % parts}
            sizes |= odd
            (undivided if odd else unwanted)[describe(op)] = None
    *most, last = map(str, sorted(sizes)) if sizes else ("",)
    listing = f"{', '.join(most)} and {last}" if most else last
    reasons = (
        (undivided, f"{listing} cannot be split evenly by {parts}"),
        (unwanted, "splitting it would cost more communication than it saves work"),
    )
    if not is_split and len(undivided) + len(unwanted) > 1:
        why = ", and ".join(reason for ops, reason in reasons if ops)
        return [f"{on} splits nothing, so that all of its devices do the same: {why}"]
    return [
        f"{_listed(list(ops))} whole on {on}: {reason}"
        for ops, reason in reasons
        if ops
    ]


def _listed(ops: Sequence[str]) -> str:
    """
    Returns the subject and the verb of a note about `ops`. The text names a few ops and
    gives the number of the remaining ops.
    """
    if len(ops) == 1:
        return f"{ops[0]} stays"
    more = len(ops) - _NAMED
    few = ", ".join(ops[:_NAMED]) if more > 0 else ", ".join(ops[:-1])
    return f"{few} and {f'{more} more' if more > 0 else ops[-1]} stay"


def forward_part(module: ModuleOp) -> ModuleOp:
    """
    Returns a copy of a program. For a training step, the copy has only the forward pass
    up to the loss, because the splits of the forward pass determine the splits of the
    backward pass and of the update. Arguments that are gradients of results are unused
    in the copy and do not influence the splits of results.
    """
    function = entry_function(module)
    outputs = forward_results(function)
    is_step = is_training_step(function) or gradients_of_results(function)
    if not is_step or not outputs:
        return module.clone()
    found = sliced(module, outputs)
    _annotate_forward(found, argument_attributes(entry_function(found)))
    return found


def _annotate_forward(
    forward: ModuleOp, attributes: Sequence[Mapping[str, Attribute]]
) -> None:
    """
    Sets the attributes of the arguments of `forward`, a copy of a program's forward
    pass from `forward_part`. The attribute that marks an argument as the gradient of a
    result is left out.
    """
    own = [{n: a for n, a in each.items() if n != GRADIENT_OF} for each in attributes]
    set_argument_attributes(entry_function(forward), own)


def _split_states_like_parameters(
    function: FuncOp, attributes: list[dict[str, Attribute]], mesh: Mesh, axis: str
) -> None:
    """
    Requests, for each optimizer state, the split over `axis` that its parameter has.
    """
    inputs = function.function_type.inputs.data
    for j, i in parameters_of_states(function).items():
        if axis in fixed_axes(attributes[j]):
            continue
        if LAYOUT not in attributes[i] or shape_of(inputs[j]) != shape_of(inputs[i]):
            continue
        before = requested_layout(attributes[j]) or Layout(mesh.name)
        like = requested_layout(attributes[i]) or before
        placement = placement_in(like, axis)
        after = add_placement(before, axis, placement, rank_of(inputs[j]))
        if axis not in before.split_axes and fits(shape_of(inputs[j]), after, mesh):
            attributes[j][LAYOUT] = layout_attr(after)


def _split_tables(
    function: FuncOp,
    attributes: list[dict[str, Attribute]],
    mesh: Mesh,
    axis: str,
    *,
    is_forward: bool,
) -> None:
    """
    Requests a split of the rows of lookup tables over `axis`, for tables that are
    larger than the rows looked up in them. The split saves memory, but costs a sum over
    devices, because each device finds only rows of its own part. If a head shares its
    parameter with such a table, the columns of the head are split as well.

    With `is_forward`, `function` is the forward pass of a training step. The memory of
    a table then includes its gradient and states, and the looked-up rows are the rows
    of one micro-batch. This function does not decide about a table that is not only
    used for lookups, such as a table shared with a head: the table's product as a head
    decides.
    """
    parts = mesh.size(axis)
    for op in function.body.block.ops:
        if not isinstance(op, OnnxOp) or op.name != "onnx.Gather":
            continue
        table, indices = op.operands
        if not isinstance(table, BlockArgument):
            continue
        if is_forward and any(use.operation.name != op.name for use in table.uses):
            continue
        entry, sizes = attributes[table.index], shape_of(table.type)
        before = requested_layout(entry) or Layout(mesh.name)
        if axis in fixed_axes(entry) or axis in before.split_axes:
            continue
        if argument_roles(function)[table.index] != "parameter" or not sizes:
            continue
        found = prod(shape_of(op.results[0].type))
        if isinstance(indices, BlockArgument):
            layout = requested_layout(attributes[indices.index])
            axes = layout.split_axes if layout is not None else ()
            found //= prod(mesh.size(a) for a in axes if is_forward or a != TIME_AXIS)
        rows = op.attribute("axis") % len(sizes)
        split = add_placement(before, axis, SplitPlacement(rows), len(sizes))
        if found < prod(sizes) * (parts - 1) // parts and fits(sizes, split, mesh):
            entry[LAYOUT] = layout_attr(canonical(sizes, split, mesh))


def split_parameters(
    module: ModuleOp, axis: str, *, leaves_split: bool = False
) -> None:
    """
    Annotates the parameters of a sequential program to split over mesh axis `axis`, as
    the documentation of the pass `tensor-parallel` describes. With `leaves_split`,
    results of the program may stay split. Raises DistIRError if a request in the
    program is invalid.
    """
    mesh = axis_mesh(module, axis)
    function = entry_function(module)
    attributes = argument_attributes(function)
    is_training = is_training_step(function)
    # The choice rests on what the axes before this one do. Working that out may
    # clone functions and decompose ops, so it happens on a copy.
    copy = forward_part(module)
    forward = entry_function(copy)
    _split_tables(forward, attributes, mesh, axis, is_forward=is_training)
    set_argument_attributes(function, attributes)
    _annotate_forward(copy, attributes)
    plan = ShardingPlan(copy, mesh)
    for before, _ in mesh.axes:
        if before == axis:
            break
        plan.add_axis(before)
    _, found = plan.solve(
        axis,
        free_parameters=True,
        is_forward=is_training,
        leaves_split=leaves_split,
    )
    whole = Layout(mesh.name)
    for entry, placement, arg in zip(
        attributes, found.arguments, function.body.block.args, strict=True
    ):
        if not isinstance(placement, SplitPlacement):
            continue
        layout = requested_layout(entry) or whole
        if axis in layout.split_axes:
            continue
        after = add_placement(layout, axis, placement, rank_of(arg.type))
        if fits(shape_of(arg.type), after, mesh):
            entry[LAYOUT] = layout_attr(canonical(shape_of(arg.type), after, mesh))
    _split_states_like_parameters(function, attributes, mesh, axis)
    set_argument_attributes(function, attributes)
    add_notes(module, left_whole(found, mesh, axis, plan.signatures))
