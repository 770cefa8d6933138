"""Sequences that are split over a mesh axis, through attention."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import LAYOUT, Layout, LayoutAttr, Shard
from distir.errors import DistIRError, one_of
from distir.planning.annotations import (
    add_notes,
    axis_mesh,
    fixed_axes,
    origin_of,
    request_split,
    requested_layout,
)
from distir.program import (
    argument_attributes,
    argument_names,
    argument_roles,
    entry_function,
    set_argument_attributes,
)
from distir.sharding.rule import shape_of
from distir.transforms.context_parallel import split_attention

ORDERS = ("contiguous", "cyclic")
"""How the tokens of a sequence are dealt out to the devices of an axis."""

_ROUNDS = 32
"""
Into how many parts a device's share of a sequence is cut in cyclic order, where its length
allows that: with n of them, devices differ by at most 1 / n in what a causal mask leaves.
"""


def split_context(module: ModuleOp, axis: str, order: str = "contiguous") -> None:
    """
    Annotates the inputs and labels of a sequential program that hold the sequence with a split
    of it over a mesh axis, and prepares attention for it, as `context-parallel` says.
    Raises DistIRError.
    """
    one_of("order of tokens", order, ORDERS, "context-parallel")
    mesh = axis_mesh(module, axis)
    function = entry_function(module)
    attributes, names = argument_attributes(function), argument_names(function)
    types = function.function_type.inputs.data
    held = {
        i: shape_of(types[i])
        for i, role in enumerate(argument_roles(function))
        if role in ("input", "label") and len(shape_of(types[i])) > 1
    }
    if not held:
        raise DistIRError(
            "context-parallel: the program has no input with a sequence to split (a "
            "dimension behind the batch)"
        )
    first = next(iter(held))
    length = held[first][1]
    if length % mesh.size(axis):
        raise DistIRError(
            f"context-parallel: the sequence of {length} (dimension 1 of input "
            f"{names[first]!r}) cannot be split evenly over axis {axis!r} of size "
            f"{mesh.size(axis)}; choose a length that is a multiple of it, or another "
            f"-{axis}"
        )
    shard = Shard(axis, _run(length, mesh.size(axis), order))
    found, left = split_attention(module, mesh, length, shard)
    if not found:
        raise DistIRError(
            f"context-parallel: the program has no attention over a sequence of {length} "
            f"(dimension 1 of input {names[first]!r}) to split over axis {axis!r}; attention "
            f"that is written out in products and a softmax is recognised by raise-patterns"
        )
    for i, shape in held.items():
        if shape[1] != length:
            continue
        layout = requested_layout(attributes[i]) or Layout(mesh.name)
        split = request_split(layout, 1, shard, len(shape), mesh)
        if axis in fixed_axes(attributes[i]) and layout != split:
            raise DistIRError(
                f"context-parallel: input {names[i]!r} holds the sequence, which axis "
                f"{axis!r} splits, but {origin_of(attributes[i], axis)} asks for something "
                f"else over {axis!r}; remove that, or choose {axis}=1"
            )
        attributes[i][LAYOUT] = LayoutAttr(split)
    set_argument_attributes(function, attributes)
    add_notes(
        module,
        [
            f"context-parallel: {what} is computed whole on every device of axis {axis!r}: "
            f"it has a past, a window or another form that cannot be split"
            for what in left
        ],
    )


def _run(length: int, parts: int, order: str) -> int | None:
    """
    How many neighbouring tokens a device has; None for all of its share. As few rounds as
    divide the share and balance the work, else a token each.
    """
    if order == "contiguous" or length == parts:
        return None
    own = length // parts
    return own // next((n for n in range(_ROUNDS, own) if own % n == 0), own)
