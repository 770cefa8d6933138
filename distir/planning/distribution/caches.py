"""Splits the positions of caches of inference over mesh axes."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import LAYOUT, Layout, LayoutAttr, Shard
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError, listed
from distir.planning.annotations import (
    add_notes,
    axis_mesh,
    fixed_axes,
    request_split,
    requested_layout,
)
from distir.program import (
    BATCH_ROLES,
    CACHE,
    Program,
    argument_attributes,
    argument_names,
    argument_roles,
    entry_function,
    set_argument_attributes,
)
from distir.sharding.layout import fits
from distir.sharding.mesh import Mesh
from distir.transforms.sequences.split_caches import (
    POSITIONS,
    Caches,
    split_caches,
)

NAME = "split-caches"

_HEADS = 1
"""The dimension of a cache of keys or values that has the heads."""


def split_positions(module: ModuleOp, axes: Sequence[str]) -> None:
    """
    Annotates a sequential program with caches: their positions are split over the mesh
    axes `axes`, and writes and attention are prepared for the split, as the
    documentation of the pass `split-caches` describes. A program without caches is left
    unchanged, and so are caches for which another layout was requested. Raises
    DistIRError if no cache can be split in this way, or if the sizes do not allow it.
    """
    caches = Caches(module)
    if not caches.shapes and not caches.left:
        return
    mesh = axis_mesh(module, axes[0])
    parts = prod(map(mesh.size, axes))
    where = " and ".join(map(repr, axes))
    function = entry_function(module)
    attributes, names = argument_attributes(function), argument_names(function)
    if not caches.shapes and takes_one_token(module):
        why = (
            "they are in pages, which have no positions of one sequence to split; build or "
            "import the program without --page-size"
            if caches.has_pages
            else "they have no positions, such as states of state-space layers"
        )
        raise DistIRError(
            f"{NAME}: no cache of the program can be split over axis {where}: {why}; or "
            f"choose degree 1"
        )
    chosen: list[int] = []
    for index, shape in caches.shapes.items():
        own = attributes[index]
        layout = before = requested_layout(own) or Layout(mesh.name)
        for axis in axes:
            layout = request_split(layout, POSITIONS, Shard(axis), len(shape), mesh)
        if layout != before and not set(axes).isdisjoint(fixed_axes(own)):
            caches.left.append(index)  # it has the layout that was asked for
            continue
        chosen.append(index)
        if shape[POSITIONS] % parts:
            raise DistIRError(
                f"{NAME}: the {shape[POSITIONS]} positions of cache {names[index]!r} "
                f"cannot be split evenly over axis {where} of size {parts}; build or import "
                f"the program with a --cache that is a multiple of {parts}, or choose "
                f"another degree"
            )
        own[LAYOUT] = LayoutAttr(layout)
    set_argument_attributes(function, attributes)
    left = [
        f"{NAME}: {what} reads whole caches on every device of axis {where}: it has a "
        f"form that cannot be split"
        for what in split_caches(caches, chosen, parts)
    ]
    if caches.left:
        shown = listed([repr(names[index]) for index in caches.left])
        left.append(
            f"{NAME}: the positions of {shown} are not split over axis {where}: tokens are "
            f"not written to them one by one, or another layout was asked for"
        )
    add_notes(module, left)


def takes_one_token(module: ModuleOp) -> bool:
    """
    Whether a program is a step of inference that takes one token of each sequence: it
    has caches, and the second dimension of its first input with two dimensions or more
    has the size 1.
    """
    arguments = Program(module).arguments
    if all(argument.role != CACHE for argument in arguments):
        return False
    inputs = (shape_of(a.type) for a in arguments if a.role in BATCH_ROLES)
    return next((shape[1] for shape in inputs if len(shape) > 1), 0) == 1


def positions_of_caches(module: ModuleOp) -> set[int]:
    """
    Returns the numbers of positions of the caches of a program that can be split along
    positions.
    """
    return {shape[POSITIONS] for shape in Caches(module).shapes.values()}


def axes_of_heads(module: ModuleOp, devices: int) -> tuple[int, int]:
    """
    Returns how `devices` devices share the caches of an inference program: the number
    of parts of the heads, which is as large as the heads of all caches allow, and the
    number of parts of the positions. In a program without caches, attention is shared in
    the same way. Raises DistIRError if the program has neither caches with positions
    nor attention.
    """
    caches = Caches(module)
    counts = {shape[_HEADS] for shape in caches.shapes.values()}
    if not counts and not caches.left:
        counts = _heads_of_attention(module)
    if not counts:
        raise DistIRError(
            "distribute: cache_split=positions needs caches with positions, which "
            "programs of --serve without --page-size have, but this program has none; "
            "leave it out"
        )
    heads = gcd(devices, *counts)
    if heads == devices:
        add_notes(
            module,
            [
                f"cache_split=positions changes nothing: {devices} tensor-parallel devices "
                f"do not outnumber the heads of keys and values"
            ],
        )
    return heads, devices // heads


def _heads_of_attention(module: ModuleOp) -> set[int]:
    """Returns the numbers of heads of keys and values in a program without caches."""
    return {
        shape_of(op.operands[1])[_HEADS]
        for op in module.walk()
        if op.name == "onnx.Attention" and len(shape_of(op.operands[1])) == 4
    }


def split_parameters_like(module: ModuleOp, mesh: Mesh, axis: str, other: str) -> None:
    """
    Requests that the mesh axis `other` splits each parameter further, along the
    dimension that the axis `axis` splits, where the sizes allow it. Sums over both axes
    are then one sum.
    """
    function = entry_function(module)
    attributes, types = argument_attributes(function), function.function_type.inputs
    roles = argument_roles(function)
    for own, role, type_ in zip(attributes, roles, types.data, strict=True):
        layout, shape = requested_layout(own), shape_of(type_)
        if role != "parameter" or layout is None or other in fixed_axes(own):
            continue
        for dim in range(len(shape)):
            if Shard(axis) in layout.dim(dim):
                further = request_split(layout, dim, Shard(other), len(shape), mesh)
                if fits(shape, further, mesh):
                    own[LAYOUT] = LayoutAttr(further)
    set_argument_attributes(function, attributes)
