"""
Requests of users for the layouts of arguments. A search applies the requests to the
layouts that it tries. The split into micro-batches is added to the requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, replace

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import LAYOUT, Layout, LayoutAttr
from distir.dialects.dist_attributes import FIXED
from distir.dialects.tensors import rank_of
from distir.planning.annotations import fixed_axes, request_split, requested_layout
from distir.planning.distribution.batches import split_batch
from distir.program import (
    argument_attributes,
    entry_function,
    set_argument_attributes,
)
from distir.sharding.layout import layout_problem
from distir.sharding.mesh import TIME_AXIS, Mesh


def restricted(layout: Layout, axes: Set[str]) -> Layout:
    """
    Returns `layout` reduced to the mesh axes in `axes`: all other axes are left out.
    """
    return Layout(
        layout.mesh,
        tuple(tuple(s for s in dim if s.axis in axes) for dim in layout.dims),
        tuple(p for p in layout.partial if p[0] in axes),
    )


@dataclass(frozen=True)
class ArgumentRequest:
    """
    A user's request for the layout of an argument.

    - `layout`: the requested layout;
    - `fixed`: the axes that the request decides; all remaining axes may split the
      argument too. `fixed` is None if the request decides all axes.
    """

    layout: Layout
    fixed: tuple[str, ...] | None = None

    def among(
        self,
        layouts: Iterable[Layout],
        axes: Collection[str],
        shape: tuple[int, ...],
        mesh: Mesh,
    ) -> set[Layout]:
        """
        Returns the layouts that the argument may have on the mesh axes in `axes`: the
        request alone, and the request combined with the splits of one of `layouts` over
        the axes that the request leaves free. `layouts` are the layouts in which ops
        use the argument.
        """
        found = {restricted(self.layout, set(axes))}
        if self.fixed is None:
            return found
        (asked,) = found
        free = {a for a in axes if a not in self.fixed and a != TIME_AXIS}
        for layout in layouts:
            joined = asked
            for dim, shards in enumerate(layout.full_dims(len(shape))):
                for shard in shards:
                    if shard.axis in free:
                        joined = request_split(joined, dim, shard, len(shape), mesh)
            if not layout_problem(shape, joined, mesh):
                found.add(joined)
        return found


def requests_of(module: ModuleOp) -> dict[int, ArgumentRequest]:
    """
    Returns the requests for the layouts of the entry function's arguments, by argument
    index.
    """
    attributes = argument_attributes(entry_function(module))
    return {
        i: ArgumentRequest(layout, fixed_axes(entry) if FIXED in entry else None)
        for i, entry in enumerate(attributes)
        if (layout := requested_layout(entry)) is not None
    }


def split_over_time(
    module: ModuleOp, mesh: Mesh, requests: Mapping[int, ArgumentRequest]
) -> dict[int, ArgumentRequest]:
    """
    Annotates the inputs and labels that hold the batch with a split into micro-batches.
    In each dimension, this split comes before the requested splits. `requests` are the
    requests for the entry function's arguments, by index; returns them with the split
    into micro-batches added.
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
