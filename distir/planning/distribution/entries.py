"""
Distributes programs with several entries, such as the prefill and decode of inference.

All entries share parameters and caches, and each shared tensor has one layout. The last
entry chooses the layout, because decode runs once for each token and prefill only once
for each prompt. The other entries are distributed with these layouts fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr

from distir.dialects.dist import LAYOUT, Layout, LayoutAttr
from distir.dialects.dist_attributes import FIXED, FIXED_BY, STAGE
from distir.errors import DistIRError
from distir.pipelining import SEARCH
from distir.planning.annotations import requested_layout
from distir.planning.distribution.options import NAME, DistributionOptions
from distir.planning.requests import named_argument
from distir.program import (
    BATCH_ROLES,
    argument_attributes,
    argument_names,
    argument_roles,
    entry_function,
    entry_points,
    set_argument_attributes,
)
from distir.program.entries import SHARED_ROLES
from distir.sharding.mesh import Mesh

StoredLayouts = Mapping[str, Layout]
"""The layouts of the arguments that entries share, by name."""


@dataclass(frozen=True)
class Chosen:
    """
    The choices for one program that other programs with the same arguments follow, such
    as the other entries. `layouts` are the layouts of arguments, on any mesh with the
    same axes; `stages` are the pipeline stages of arguments. For the axes `free`, a
    program that follows these choices decides by its own options.
    """

    layouts: StoredLayouts
    stages: Mapping[str, int]
    free: tuple[str, ...] = ()

    def with_others(self, others: Chosen) -> Chosen:
        """
        Returns these choices, with the choices in `others` added for further arguments.
        """
        layouts = {**others.layouts, **self.layouts}
        return Chosen(layouts, {**others.stages, **self.stages}, self.free)


def check_meshes(options: DistributionOptions) -> None:
    """
    Raises DistIRError for the option `stage_meshes=search`, which is not supported for
    a program with several entries.
    """
    if options.stage_meshes == (SEARCH,):
        raise DistIRError(
            f"{NAME}: the entries of a program share the meshes of its stages, which "
            f"stage_meshes=search finds for one entry only; give the meshes"
        )


def for_entry(
    options: DistributionOptions, entry: ModuleOp, module: ModuleOp
) -> DistributionOptions:
    """
    Returns the options for one entry of `module`. Requests for arguments that only
    other entries have are left out. Requests that match no argument of any entry stay,
    so that a later check refuses them.
    """
    own = set(argument_names(entry_function(entry)))
    every = {n for f in entry_points(module).values() for n in argument_names(f)}

    def is_for(pattern: str) -> bool:
        found = any(fnmatchcase(name, pattern) for name in every)
        return not found or any(fnmatchcase(name, pattern) for name in own)

    return replace(
        options,
        shard=tuple([r for r in options.shard if is_for(named_argument(r))]),
        whole=tuple([pattern for pattern in options.whole if is_for(pattern)]),
    )


def stored_layouts(module: ModuleOp) -> dict[str, Layout]:
    """
    Returns the chosen layouts of the arguments that several entries of a program can
    share, by name.
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
        if role in SHARED_ROLES and (layout := requested_layout(attributes)) is not None
    }


def fix_layouts(module: ModuleOp, mesh: Mesh, chosen: Chosen) -> None:
    """
    Fixes the layouts in `chosen` for the arguments of a sequential program, on all axes
    of the mesh except `chosen.free`.
    """
    function = entry_function(module)
    attributes = argument_attributes(function)
    fixed = [axis for axis, _ in mesh.axes if axis not in chosen.free]
    by = StringAttr("the layout in the other program")
    for own, name in zip(attributes, argument_names(function), strict=True):
        if name in chosen.layouts:
            dims = tuple(
                tuple(shard for shard in dim if shard.axis in fixed)
                for dim in chosen.layouts[name].dims
            )
            own[LAYOUT] = LayoutAttr(Layout(mesh.name, dims))
            own[FIXED] = ArrayAttr([StringAttr(axis) for axis in fixed])
            own[FIXED_BY] = DictionaryAttr({axis: by for axis in fixed})
    set_argument_attributes(function, attributes)


def ask_for_stages(module: ModuleOp, stages: Mapping[str, int]) -> None:
    """
    Requests the pipeline stages in `stages` for the arguments of a sequential program,
    by name. Inputs and labels are left out, because each program has its own.
    """
    function = entry_function(module)
    attributes = argument_attributes(function)
    described = zip(
        attributes, argument_names(function), argument_roles(function), strict=True
    )
    for own, name, role in described:
        if name in stages and role not in BATCH_ROLES:
            own[STAGE] = STAGE.attr(stages[name])
    set_argument_attributes(function, attributes)
