"""Optimizer states, gradients and parameters that are stored split over the data axis."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from xdsl.dialects.builtin import ModuleOp, UnitAttr
from xdsl.ir import Block, Operation, SSAValue

from distir.dialects.dist import (
    LAYOUT,
    RESHARD_EARLY,
    ConstrainOp,
    Layout,
    LayoutAttr,
    Shard,
)
from distir.errors import DistIRError
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
    linked_arguments,
    parameters_of_gradients,
    parameters_of_states,
    return_op,
    set_argument_attributes,
)
from distir.repacking import repacked_of
from distir.sharding.layout import fits
from distir.sharding.mesh import Mesh
from distir.sharding.rule import shape_of

_NAMED = 4
"""How many of the tensors that stay whole a note names."""


def _storage(
    shape: tuple[int, ...],
    layout: Layout,
    mesh: Mesh,
    axis: str,
    outside: bool,
    merged: int | None = None,
) -> Layout:
    """
    The layout with the first dimension split that the axis divides evenly: the parts that
    other axes leave of it, so that a device reduces, scatters and gathers its own part
    alone. Dimensions that these split in runs come last, whose runs are then split anew. Of
    several matrices (experts) those come first that no other axis splits: work may then be
    split along them, too.
    For an optimizer `outside` axes are in the mesh's order, as DTensor has them, and
    dimensions whose runs the axis would divide are none, nor is the dimension along which
    several of its parameters are `merged`.
    """
    several = len(shape) > 2
    dims = sorted(
        range(len(shape)),
        key=lambda dim: (_has_runs(layout, dim), several and bool(layout.dim(dim))),
    )
    for dim in dims:
        if outside and dim == merged:
            continue
        inside = not outside and not _has_runs(layout, dim)
        split = layout.with_dim(dim, (*layout.dim(dim), Shard(axis)), len(shape))
        if not inside:
            split = request_split(layout, dim, Shard(axis), len(shape), mesh)
        if fits(shape, split, mesh) and not (
            outside and divides_runs(shape[dim], layout.dim(dim), mesh, axis)
        ):
            return split
    return layout


def _has_runs(layout: Layout, dim: int) -> bool:
    return any(shard.run is not None for shard in layout.dim(dim))


def _left_whole(names: Sequence[str], axis: str, mesh: Mesh) -> list[str]:
    """The notes for tensors that an axis does not divide: of many the first ones alone."""
    what = f"axis {axis!r} of size {mesh.size(axis)} divides none of"
    if len(names) <= _NAMED:
        return [f"zero: {name} stays whole: {what} its dimensions" for name in names]
    shown = f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return [f"zero: {shown} stay whole: {what} their dimensions"]


def divides_runs(size: int, shards: Sequence[Shard], mesh: Mesh, axis: str) -> bool:
    """Whether splitting what these shards leave of a dimension over an axis cuts runs."""
    for shard in shards:
        size //= mesh.size(shard.axis)
        if shard.run is not None and size // shard.run % mesh.size(axis):
            return True
    return False


def _check_only(known: Sequence[str], only: Sequence[str]) -> None:
    for pattern in only:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise DistIRError(
                f"zero: no parameter that is updated is called {pattern!r}; the "
                f"program has {', '.join(known)}"
            )


def _gather_once(parameter: SSAValue, axis: str, mesh: Mesh) -> None:
    """All that uses a parameter takes the same copy of it, whole on an axis."""
    if parameter.first_use is None:
        return
    gathered = ConstrainOp(parameter, Layout(mesh.name), [axis])
    parameter.replace_all_uses_with(gathered.result)
    gathered.operands[0] = parameter
    block = parameter.owner
    assert isinstance(block, Block) and block.first_op is not None
    block.insert_op_before(gathered, block.first_op)


def store_split(
    module: ModuleOp, stage: int, axis: str, only: Sequence[str] = ("*",)
) -> None:
    """
    Annotates what a training step keeps to be stored split over a mesh axis, as `zero` says.
    A step that gives gradients has them and the parameters split.
    Raises DistIRError.
    """
    if stage not in (1, 2, 3):
        raise DistIRError(f"zero: there is no stage {stage}; choose 1, 2 or 3")
    mesh = axis_mesh(module, axis)
    function = entry_function(module)
    updates = linked_arguments(function)
    roles, names = argument_roles(function), argument_names(function)
    types = function.function_type.inputs.data
    # An optimizer outside of the program updates what it is given: parameters and
    # gradients are split for it in every stage, and so that DTensor can say how.
    outside = bool(parameters_of_gradients(function))
    stored = ("parameter", "state") if stage == 3 or outside else ("state",)
    if not any(roles[i] in stored and shape_of(types[i]) for i in updates.values()):
        raise DistIRError(
            f"zero: the program updates no {' or '.join(stored)}, which is what stage "
            f"{stage} splits; differentiate it with an optimizer that has it first"
        )
    attributes = argument_attributes(function)
    known = [names[i] for i in updates.values() if roles[i] == "parameter"]
    _check_only(known, only)
    parameter = parameters_of_states(function)
    chosen = [
        i
        for i in updates.values()
        if any(fnmatchcase(names[parameter.get(i, i)], p) for p in only)
    ]
    whole: list[str] = []
    kept: list[str] = []
    split = 0
    for i in chosen:
        shape = shape_of(types[i])
        if roles[i] not in stored or not shape:
            continue
        before = requested_layout(attributes[i]) or Layout(mesh.name)
        if axis in fixed_axes(attributes[i]):
            if axis in before.split_axes:
                split += 1
            else:
                by = origin_of(attributes[i], axis)
                kept.append(
                    f"zero: {names[i]} stays whole over axis {axis!r}, as {by} asks"
                )
            continue
        repacked = repacked_of(attributes[i])
        merged = None if repacked is None else repacked.dim
        layout = _storage(shape, before, mesh, axis, outside, merged)
        if layout == before:
            whole.append(names[i])
            continue
        attributes[i][LAYOUT] = LayoutAttr(layout)
        if outside and stage < 3:
            _gather_once(function.body.block.args[i], axis, mesh)
        split += 1
    if not split and kept:
        raise DistIRError(
            f"zero: nothing is left to split over axis {axis!r}: {'; '.join(kept[:4])}; "
            f"ask for stage 0, or for less to be whole"
        )
    if not split:
        raise DistIRError(
            f"zero: axis {axis!r} of size {mesh.size(axis)} divides no "
            f"dimension of {', '.join(whole)}; choose "
            f"another degree of data parallelism"
        )
    set_argument_attributes(function, attributes)
    add_notes(module, _left_whole(whole, axis, mesh) + kept)
    if stage >= 2:
        for result, argument in updates.items():
            owner = return_op(function).operands[result].owner
            if argument in chosen and isinstance(owner, Operation):
                owner.attributes[RESHARD_EARLY] = UnitAttr()
