"""
Chooses the dimensions of parameters and the heads of attention that are padded, so that
an axis of the mesh can split them.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.tensors import shape_of
from distir.planning.annotations import add_notes
from distir.planning.requests import requested_splits
from distir.program import (
    argument_names,
    argument_roles,
    entry_function,
    parameters_of_gradients,
)
from distir.program.source_forms import argument_forms
from distir.sharding.mesh import Mesh
from distir.transforms.uneven_sizes.head_padding import HeadPadder, PaddedHeads
from distir.transforms.uneven_sizes.padding import DimensionPadder, class_dimensions

PADDABLE = ("heads",)
"""The kinds of dimensions that are padded only on a user's request."""


def pad_dimensions(
    module: ModuleOp, mesh: Mesh, axis: str, requests: Sequence[str]
) -> None:
    """
    Pads dimensions with zeros to a multiple of the size of the axis `axis`, so that the
    axis can split them. These are the vocabulary of a training step, from its embedding
    to its loss, and the dimensions that `requests` (`NAME:DIM=AXIS`) split over the
    axis. A dimension is padded only if all its uses can work with the larger size. A
    note names the padded parameters. A program whose optimizer runs outside is left
    unchanged, because that optimizer has parameters and gradients in their original
    shapes. Raises DistIRError for malformed requests.
    """
    function = entry_function(module)
    if parameters_of_gradients(function):
        return
    roles, types = argument_roles(function), function.function_type.inputs.data
    parts = mesh.size(axis)
    groups = [class_dimensions(function)]
    for i, dim, shard in requested_splits(function, requests):
        if shard.axis == axis and shard.run is None and roles[i] == "parameter":
            groups.append({i: dim})
    done: set[int] = set()
    for dims in groups:
        sizes = {shape_of(types[i])[dim] for i, dim in dims.items()}
        if len(sizes) != 1 or done & dims.keys():
            continue
        (size,) = sizes
        if size % parts == 0 or size < parts:
            continue
        padder = DimensionPadder(function, dims, -(-size // parts) * parts)
        if not padder.is_of_use():
            continue
        padder.pad()
        done |= dims.keys()
        names = argument_names(function)
        add_notes(
            module,
            [
                f"{', '.join(names[i] for i in dims)}: {size} is padded with zeros to "
                f"{padder.size}, a multiple of the {parts} devices of axis {axis!r}"
            ],
        )


def pad_heads(module: ModuleOp, mesh: Mesh, axis: str, asked: bool) -> list[str]:
    """
    If `asked`, pads attention with heads of zeros where the axis `axis` cannot split
    its heads, and adds a note. Otherwise only adds a note that padding is possible.
    Returns further splits to request (`NAME:DIM=AXIS:RUN`), for parameters in which the
    zeros come in groups: every device gets a part of each group.
    """
    parts = mesh.size(axis)
    padder = HeadPadder(module, parts)
    told = [_note_on_heads(heads, parts, axis, asked) for heads in padder.heads()]
    if not asked:
        add_notes(module, told)
        return []
    if not told:
        told.append(
            f"--pad heads changes nothing: axis {axis!r} of {parts} devices splits the heads "
            f"of all attention that can be padded"
        )
    add_notes(module, told)
    padder.pad()
    function = entry_function(module)
    roles, names = argument_roles(function), argument_names(function)
    requests: list[str] = []
    for i, form in enumerate(argument_forms(function)):
        if form is not None and form.runs is not None and roles[i] == "parameter":
            dim, ((count, zeros), *_) = form.runs
            run = (count + zeros) // parts
            requests.append(f"{names[i]}:{dim}={axis}:{run}")
    return requests


def _note_on_heads(heads: PaddedHeads, parts: int, axis: str, asked: bool) -> str:
    before = _counted(heads.query_heads, heads.key_heads)
    after = _counted(heads.new_query_heads, heads.new_key_heads)
    if asked:
        return (
            f"attention of {before} is padded with heads of zeros to {after}, which the "
            f"{parts} devices of axis {axis!r} share"
        )
    return (
        f"attention of {before} cannot be shared by the {parts} devices of axis {axis!r}; "
        f"with heads of zeros, {after}, it can be: --pad heads"
    )


def _counted(query_heads: int, key_heads: int) -> str:
    if query_heads == key_heads:
        return f"{query_heads} heads"
    return f"{query_heads} query heads and {key_heads} key heads"
