"""
Chooses the dimensions of parameters that are padded, so that an axis of the mesh can split
them.
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
from distir.sharding.mesh import Mesh
from distir.transforms.padding import DimensionPadder, class_dimensions


def pad_dimensions(
    module: ModuleOp, mesh: Mesh, axis: str, requests: Sequence[str]
) -> None:
    """
    Pads dimensions that an axis of the mesh does not divide with zeros: the vocabulary of a
    training step, from its embedding to its loss, and dimensions that are requested to be
    split over the axis (`NAME:DIM=AXIS`), if all their uses can work on the larger
    dimension. A note says so. A program whose optimizer is outside of it stays as it is,
    because that optimizer has parameters and gradients in their own shapes. Raises
    DistIRError for requests that cannot be read.
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
