"""Splits the batch of a program into micro-batches, for a search of layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import LAYOUT, Layout, LayoutAttr
from distir.dialects.tensors import rank_of
from distir.planning.annotations import requested_layout
from distir.planning.distribution.batches import split_batch
from distir.planning.layouts.argument_requests import ArgumentRequest
from distir.program import (
    argument_attributes,
    entry_function,
    set_argument_attributes,
)
from distir.sharding.mesh import TIME_AXIS, Mesh


def split_over_time(
    module: ModuleOp, mesh: Mesh, requests: Mapping[int, ArgumentRequest]
) -> dict[int, ArgumentRequest]:
    """
    Annotates the inputs and labels that hold the batch with a split into micro-batches,
    outside the splits that are requested for arguments of the entry (by index). Returns the
    requests with that split added.
    """
    function = entry_function(module)
    attributes = argument_attributes(function)
    for entry in attributes:
        entry.pop(LAYOUT, None)
    set_argument_attributes(function, attributes)
    split_batch(module, TIME_AXIS)
    attributes = argument_attributes(function)
    found: dict[int, ArgumentRequest] = {}
    for i, request in requests.items():
        over_time = requested_layout(attributes[i]) or Layout(mesh.name)
        rank = rank_of(function.function_type.inputs.data[i])
        asked = request.layout.full_dims(rank)
        dims = zip(over_time.full_dims(rank), asked, strict=True)
        layout = Layout(mesh.name, tuple((*outer, *inner) for outer, inner in dims))
        found[i] = replace(request, layout=layout)
        attributes[i][LAYOUT] = LayoutAttr(layout)
    set_argument_attributes(function, attributes)
    return found
