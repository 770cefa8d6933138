"""Context parallelism: splits sequences over a mesh axis, also within attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import LAYOUT, Layout, LayoutAttr, Shard
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.attention import AttentionOp
from distir.errors import DistIRError, one_of
from distir.planning.annotations import (
    add_notes,
    axis_mesh,
    fixed_axes,
    origin_of,
    request_split,
    requested_layout,
)
from distir.planning.distribution.caches import positions_of_caches, takes_one_token
from distir.program import (
    BATCH_ROLES,
    Program,
    argument_attributes,
    argument_names,
    entry_function,
    set_argument_attributes,
)
from distir.transforms.sequences.context_parallel import split_attention
from distir.transforms.sequences.split_caches import write_split_tokens

ORDERS = ("contiguous", "cyclic")
"""
The orders in which the tokens of a sequence may be dealt out to the devices of an axis.
"""

_ROUNDS = 32
"""
The least number of runs that a device's share of a sequence consists of in cyclic
order, if the share is long enough. With n runs, the work that a causal mask leaves
differs between devices by at most a fraction 1 / n.
"""

_LONG = 8192
"""
The number of tokens from which on searches try context parallelism by default. The time
of attention grows with the square of the length. For shorter sequences other
parallelism is almost always faster, so that trying it would waste time.
"""


def context_degrees(modules: Sequence[ModuleOp], devices: int) -> tuple[int, ...]:
    """
    Returns the degrees of context parallelism that a search tries on `devices` devices.
    If all programs attend to long sequences, these are the powers of two that divide
    the number of devices and all sequence lengths; else the only degree is 1. The
    sequences of a step that takes one token are those in its caches.
    """
    lengths: set[int] = set()
    for module in modules:
        if takes_one_token(module):
            slots = positions_of_caches(module)
            if min(slots, default=0) < _LONG:
                return (1,)
            lengths.update(slots)
            continue
        held = list(_held(module).values())
        attends = any(
            isinstance(op, AttentionOp) or op.name == "onnx.Attention"
            for op in module.walk()
        )
        if not held or held[0][1] < _LONG or not attends:
            return (1,)
        lengths.add(held[0][1])
    most = gcd(devices, *lengths)
    return tuple(2**i for i in range(most.bit_length()) if most % 2**i == 0)


def _held(module: ModuleOp) -> dict[int, tuple[int, ...]]:
    """
    Returns the shapes of inputs and labels that may hold sequences. Keys are argument
    indices.
    """
    return {
        argument.index: shape
        for argument in Program(module).arguments
        if argument.role in BATCH_ROLES and len(shape := shape_of(argument.type)) > 1
    }


def split_context(module: ModuleOp, axis: str, order: str = "contiguous") -> None:
    """
    Annotates a sequential program: inputs and labels that hold the sequence are split
    over the mesh axis `axis`, and attention is prepared for the split, as the
    documentation of the pass `context-parallel` describes. `order` is one of `ORDERS`.
    A step of inference that takes one token of each sequence is left unchanged. Raises
    DistIRError if the sequence cannot be split in this way.
    """
    one_of("order of tokens", order, ORDERS, "context-parallel")
    mesh = axis_mesh(module, axis)
    function = entry_function(module)
    attributes, names = argument_attributes(function), argument_names(function)
    held = _held(module)
    if not held:
        raise DistIRError(
            "context-parallel: the program has no input with a sequence to split (a "
            "dimension behind the batch)"
        )
    first = next(iter(held))
    length = held[first][1]
    if takes_one_token(module):
        return  # only its caches are split
    if length % mesh.size(axis):
        raise DistIRError(
            f"context-parallel: the sequence of {length} (dimension 1 of input "
            f"{names[first]!r}) cannot be split evenly over axis {axis!r} of size "
            f"{mesh.size(axis)}; choose a length that is a multiple of it, or another "
            f"-{axis}"
        )
    shard = Shard(axis, _run(length, mesh.size(axis), order))
    found, left = split_attention(module, mesh, length, shard)
    write_split_tokens(module)
    notes = [
        f"context-parallel: {what} is computed whole on every device of axis {axis!r}: "
        f"it has a past, a window or another form that cannot be split"
        for what in left
    ]
    if not found:
        notes.append(
            f"context-parallel: the program has no attention op over a sequence of {length} "
            f"(dimension 1 of input {names[first]!r}); what else mixes tokens is gathered over "
            f"axis {axis!r}. raise-patterns makes an op of attention that is written out in "
            f"products and a softmax"
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
    add_notes(module, notes)


def _run(length: int, parts: int, order: str) -> int | None:
    """
    Returns the number of neighbouring tokens in each block of a device's share, or None
    if the share is one block. In cyclic order, the number of blocks per device is the
    smallest number from `_ROUNDS` upwards that divides the share evenly. If no number
    divides the share evenly, each token is a block.
    """
    if order == "contiguous" or length == parts:
        return None
    own = length // parts
    return own // next((n for n in range(_ROUNDS, own) if own % n == 0), own)
