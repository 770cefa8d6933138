"""
Distributes programs with several entries, such as the prefill and decode of inference.

All entries share parameters and caches, so that each of these has one layout. The last
entry chooses it, because decode runs once for each token and prefill only once for each
prompt. The other entries are distributed with these layouts fixed.
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
from distir.planning.stages import with_searched_stages
from distir.program import (
    argument_attributes,
    argument_names,
    argument_roles,
    entry_function,
    entry_points,
    scope_of,
    set_argument_attributes,
)
from distir.program.entries import SHARED_ROLES
from distir.sharding.mesh import Mesh
from distir.transforms.pipelines.division import stage_meshes
from distir.transforms.pipelines.pipeline import schedule_for
from distir.transforms.pipelines.stages import forward_stages, is_divided, mark
from distir.transforms.pipelines.structure import Structure

StoredLayouts = Mapping[str, Layout]
"""The layouts of the arguments that entries share, by name."""


@dataclass(frozen=True)
class Chosen:
    """
    The choices of one entry that hold for all entries: the `layouts` of shared
    arguments, and the scopes with which the pipeline `stages` after the first begin.
    """

    layouts: StoredLayouts
    stages: tuple[str, ...] = ()

    def with_layouts(self, others: StoredLayouts) -> Chosen:
        """
        Returns the choices with `others` added, for arguments without a layout so far.
        """
        return replace(self, layouts={**others, **self.layouts})


def for_entry(
    options: DistributionOptions, entry: ModuleOp, module: ModuleOp
) -> DistributionOptions:
    """
    Returns the options for one entry of `module`, without requests for arguments that
    only other entries have. Requests that match no entry's arguments stay, so that they
    are refused later.
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


def marked_stages(module: ModuleOp, options: DistributionOptions) -> tuple[str, ...]:
    """
    Divides a program over micro-batches into pipeline stages as the options request,
    and marks its ops with their stages. Returns the scopes with which the stages after
    the first begin, so that other entries can be divided in the same way. Raises
    DistIRError if the program cannot be divided, or for `stage_meshes=search`.
    """
    if options.stage_meshes == (SEARCH,):
        raise DistIRError(
            f"{NAME}: the entries of a program share the meshes of its stages, which "
            f"stage_meshes=search finds for one entry only; give the meshes"
        )
    _, stages = with_searched_stages(module, options, options.stages)
    ops = list(entry_function(module).body.block.ops)
    if not is_divided(ops) or stages:
        structure = Structure(module)
        schedule = schedule_for(structure, options)
        meshes = stage_meshes(structure, schedule, options.stage_shapes())
        mark(forward_stages(structure, meshes, stages))
    starts: dict[int, str] = {}
    for op in ops:
        stage = STAGE.of(op.attributes)
        if stage is not None:
            starts.setdefault(stage, scope_of(op))
    return tuple([starts[stage] for stage in sorted(starts)][1:])


def stored_layouts(module: ModuleOp) -> dict[str, Layout]:
    """Returns the chosen layouts of the arguments that other entries share, by name."""
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


def fix_stored(module: ModuleOp, mesh: Mesh, stored: StoredLayouts) -> None:
    """
    Fixes the layouts `stored` for the arguments of a sequential program, on all axes of
    the mesh.
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
