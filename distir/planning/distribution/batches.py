"""Finds the arguments that hold the batch, and splits the batch over a mesh axis."""

from __future__ import annotations

from math import prod

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import LAYOUT, Layout, LayoutAttr, Shard
from distir.dialects.dist_attributes import GRADIENT_OF
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.planning.annotations import (
    axis_mesh,
    fixed_axes,
    origin_of,
    request_split,
    requested_layout,
)
from distir.program import (
    BATCH_ROLES,
    CACHE,
    argument_attributes,
    argument_names,
    argument_roles,
    arguments_of,
    entry_function,
    set_argument_attributes,
)


def split_batch(module: ModuleOp, axis: str) -> None:
    """
    Annotates a sequential program: inputs, labels and caches that hold the batch are
    split over the mesh axis `axis`, as the documentation of the pass `data-parallel`
    describes. Raises DistIRError if the batch cannot be split in this way.
    """
    reason = try_to_split_batch(module, axis)
    if reason is not None:
        raise DistIRError(reason)


def try_to_split_batch(module: ModuleOp, axis: str) -> str | None:
    """
    Splits the batch over the mesh axis `axis`, as `split_batch` does, and returns None.
    If the batch cannot be split over the axis, leaves the program unchanged and returns
    the reason, as a message for the user. Raises DistIRError if the program has no axis
    `axis`.
    """
    mesh = axis_mesh(module, axis)
    function = entry_function(module)
    attributes = argument_attributes(function)
    names = argument_names(function)
    shapes = {
        argument.index: shape_of(argument.type)
        for argument in arguments_of(function)
        if argument.role in (*BATCH_ROLES, CACHE)
        and GRADIENT_OF not in argument.attributes
    }
    roles = argument_roles(function)
    batched = [i for i, shape in shapes.items() if shape]
    # The inputs tell the batch's size; caches hold a part for each sequence of it.
    batched.sort(key=lambda i: roles[i] == CACHE)
    if not batched or roles[batched[0]] == CACHE:
        return "data-parallel: the program has no input with a batch dimension to split"
    batch, size = shapes[batched[0]][0], mesh.size(axis)
    before = requested_layout(attributes[batched[0]]) or Layout(mesh.name)
    parts = prod(mesh.size(s.axis) for s in before.dim(0) if s.axis != axis)
    if batch % (parts * size):
        over = f" in each of {parts} parts" if parts > 1 else ""
        return (
            f"data-parallel: the batch of {batch} (dimension 0 of input "
            f"{names[batched[0]]!r}) cannot be split evenly over axis "
            f"{axis!r} of size {size}{over}; choose a batch that is a multiple "
            f"of {parts * size}, or another -{axis}"
        )
    for i in batched:
        if shapes[i][0] == batch:
            layout = requested_layout(attributes[i]) or Layout(mesh.name)
            split = request_split(layout, 0, Shard(axis), len(shapes[i]), mesh)
            if axis in fixed_axes(attributes[i]) and layout != split:
                return (
                    f"data-parallel: input {names[i]!r} holds the batch, which axis "
                    f"{axis!r} splits, but {origin_of(attributes[i], axis)} keeps it "
                    f"whole over {axis!r}; remove that, or choose {axis}=1"
                )
            if all(shard.axis != axis for shard in split.dim(0)):
                return (
                    f"data-parallel: axis {axis!r} splits the batch, dimension 0 of input "
                    f"{names[i]!r}, but {origin_of(attributes[i], axis)} splits another "
                    f"dimension of it over {axis!r}; remove that, or choose {axis}=1"
                )
            attributes[i][LAYOUT] = LayoutAttr(split)
    set_argument_attributes(function, attributes)
    return None
