"""
Distributes programs with several entries, such as the prefill and decode of inference.

Parameters and caches are one value for all entries, so that they have one layout. The
last entry chooses it, since decode runs once for each token and prefill once for each
prompt; the others are distributed around it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr

from distir.dialects.dist import LAYOUT, Layout, LayoutAttr
from distir.dialects.dist_attributes import FIXED, FIXED_BY
from distir.errors import DistIRError
from distir.pipelining import SEARCH
from distir.planning.annotations import requested_layout
from distir.planning.distribution.options import NAME, DistributionOptions
from distir.program import (
    argument_attributes,
    argument_names,
    argument_roles,
    entry_function,
    set_argument_attributes,
)
from distir.program.entries import SHARED_ROLES
from distir.sharding.mesh import Mesh
from distir.transforms.pipelines.stages import UNIFORM

StoredLayouts = Mapping[str, Layout]
"""The layouts of arguments that entries share, by name."""


def options_of_entries(options: DistributionOptions) -> DistributionOptions:
    """
    Returns the options for each entry of a program with several. A pipeline has equal
    numbers of layers in its stages, in all entries, unless the options say where stages
    begin. Raises DistIRError if stages or their meshes are to be searched: each entry
    would find others.
    """
    if options.stages == (SEARCH,) or options.stage_meshes == (SEARCH,):
        raise DistIRError(
            f"{NAME}: the entries of a program share the stages of a pipeline, which a "
            f"search would choose for each; give stages=uniform, or the scopes with which "
            f"stages begin"
        )
    if options.p > 1 and not options.stages:
        return replace(options, stages=(UNIFORM,))
    return options


def stored_layouts(module: ModuleOp) -> dict[str, Layout]:
    """
    Returns the layouts that were chosen for the arguments of a program that other
    entries share.
    """
    function = entry_function(module)
    described = zip(
        argument_names(function),
        argument_roles(function),
        argument_attributes(function),
        strict=True,
    )
    return {
        name: layout
        for name, role, attributes in described
        if role in SHARED_ROLES
        and (layout := requested_layout(attributes)) is not None
    }


def fix_stored(module: ModuleOp, mesh: Mesh, stored: StoredLayouts) -> None:
    """
    Requests the layouts `stored` for the arguments of a sequential program, on all axes
    of the mesh.
    """
    function = entry_function(module)
    attributes = argument_attributes(function)
    axes = [StringAttr(axis) for axis, _ in mesh.axes]
    by = StringAttr("the layout in the other entry")
    for own, name in zip(attributes, argument_names(function), strict=True):
        if name in stored:
            own[LAYOUT] = LayoutAttr(stored[name])
            own[FIXED] = ArrayAttr(axes)
            own[FIXED_BY] = DictionaryAttr({axis.data: by for axis in axes})
    set_argument_attributes(function, attributes)
