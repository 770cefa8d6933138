"""Keeps outputs split with the batch, in programs whose caller computes the loss."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import OpResult
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import LAYOUT, ConstrainOp, Layout, LayoutAttr, Shard
from distir.dialects.tensors import shape_of
from distir.planning.annotations import request_split, requested_layout
from distir.planning.axes.micro_batches import MicroBatchPlanner
from distir.planning.axes.sharding_plan import ShardingPlan
from distir.planning.axes.tensor_parallel import forward_part
from distir.program import (
    argument_attributes,
    entry_function,
    forward_results,
    gradients_of_results,
    return_op,
    set_argument_attributes,
)
from distir.sharding.layout import canonical, fits
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.placement import SplitPlacement, add_placement, placement_in


def split_outputs(module: ModuleOp, mesh: Mesh, axes: Sequence[str]) -> None:
    """
    Annotates a sequential program that takes gradients of its results as arguments.
    Results whose first dimension is the batch, and the gradients of these results, are
    split over `axes`, the axes that split the batch. Without the annotation, layouts of
    least cost may replicate them. A program without such arguments is left unchanged.
    """
    entry = entry_function(module)
    links = gradients_of_results(entry)
    if not links or not axes:
        return
    found = _batched(module, mesh, axes[0])
    attributes = argument_attributes(entry)
    returned = return_op(entry)
    for index in found:
        value = returned.operands[index]
        rank = len(shape_of(value.type))
        if index in links:
            own = attributes[links[index]]
            layout = requested_layout(own) or Layout(mesh.name)
            for axis in axes:
                layout = request_split(layout, 0, Shard(axis), rank, mesh)
            own[LAYOUT] = LayoutAttr(layout)
            continue
        space = [axis for axis in axes if axis != TIME_AXIS]  # time splits it anyway
        if not space:
            continue
        shards = [Shard(axis) for axis in space]
        layout = Layout(mesh.name).with_dim(0, shards, rank)
        constrain = ConstrainOp(value, layout, space)
        Rewriter.insert_op(constrain, InsertPoint.before(returned))
        returned.operands[index] = constrain.result
    set_argument_attributes(entry, attributes)


def leave_outputs_split(module: ModuleOp, mesh: Mesh, axis: str) -> None:
    """
    Annotates a sequential program that takes gradients of its results as arguments. If
    the forward pass computes a result in parts over `axis`, such as logits split over
    words, the result leaves the program in these parts, and its gradient enters in the
    same parts. Without the annotation, results are gathered. A program without such
    arguments is left unchanged.
    """
    entry = entry_function(module)
    links = gradients_of_results(entry)
    if not links:
        return
    plan = ShardingPlan(forward_part(module), mesh)
    for before, _ in mesh.axes:
        if before == axis:
            break
        plan.add_axis(before)
    _, found = plan.solve(
        axis, free_parameters=False, is_forward=True, leaves_split=True
    )
    attributes = argument_attributes(entry)
    for place, index in enumerate(forward_results(entry)):
        placement = found.results[place]
        if index not in links or not isinstance(placement, SplitPlacement):
            continue
        own = attributes[links[index]]
        layout = requested_layout(own) or Layout(mesh.name)
        sizes = shape_of(return_op(entry).operands[index].type)
        split = add_placement(layout, axis, placement, len(sizes))
        if axis not in layout.split_axes and fits(sizes, split, mesh):
            own[LAYOUT] = LayoutAttr(canonical(sizes, split, mesh))
    set_argument_attributes(entry, attributes)


def _batched(module: ModuleOp, mesh: Mesh, axis: str) -> list[int]:
    """
    Returns the indices of the results of the forward pass whose first dimension is the
    batch. A split of the inputs over `axis` reaches this dimension unchanged.
    """
    entry = entry_function(module)
    plan = ShardingPlan(module, mesh)
    keys = [
        placement_in(request or Layout(mesh.name), axis) for request in plan.requests
    ]
    placed = MicroBatchPlanner(plan.seen_by(axis)).solve(keys)
    found: list[int] = []
    for index in forward_results(entry):
        value = return_op(entry).operands[index]
        if isinstance(value, OpResult):
            placement = placed.sharding_of(value)
            if placement == SplitPlacement(0):
                found.append(index)
    return found
