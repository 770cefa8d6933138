"""The arguments of a program as a plan has them, to be found again by name in another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import LAYOUT, ConstrainOp, Layout, LayoutAttr, Shard
from distir.dialects.onnx_shapes import bare_type
from distir.errors import DistIRError
from distir.planning.annotations import requested_layout
from distir.planning.zero import divides_runs
from distir.program import (
    argument_attributes,
    argument_names,
    argument_roles,
    entry_function,
    parameters_of_states,
    set_argument_attributes,
)
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.rule import shape_of

Dims = tuple[tuple[Shard, ...], ...]
"""Per dimension the axes that it is split over."""

_MATCHED = ("parameter", "input", "label")
"""Roles of the arguments that programs of one model have in common, whatever optimizer."""


@dataclass(frozen=True)
class PlannedArgument:
    """
    An argument of the program that a plan is for: its name, role and type as text, and how
    the plan splits it (`dims`); `stored`: how the states of a parameter are split, which may
    be into smaller parts than the parameter itself.
    """

    name: str
    role: str
    type: str
    dims: Dims = ()
    stored: Dims = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {**vars(self), "dims": self.dims, "stored": self.stored}

    @staticmethod
    def from_json(data: Any) -> PlannedArgument:
        """What `to_json` gave. Raises KeyError, TypeError or ValueError for other data."""
        name, role, type_ = (data[key] for key in ("name", "role", "type"))
        if not all(isinstance(text, str) for text in (name, role, type_)):
            raise TypeError(f"{name!r} is no argument")
        return PlannedArgument(
            name, role, type_, _dims_of(data["dims"]), _dims_of(data["stored"])
        )


def _dims_of(data: Any) -> Dims:
    def shard(axis: Any, run: Any) -> Shard:
        if not isinstance(axis, str) or not (run is None or type(run) is int):
            raise TypeError(f"{axis!r} in runs of {run!r} is no split")
        return Shard(axis, run)

    return tuple(tuple(shard(*pair) for pair in dim) for dim in data)


def planned_arguments(module: ModuleOp) -> tuple[PlannedArgument, ...]:
    """The arguments of a sequential program, with the layouts that annotations ask for."""
    function = entry_function(module)
    types = function.function_type.inputs.data
    layouts = [
        _without_time(requested_layout(attributes))
        for attributes in argument_attributes(function)
    ]
    states: dict[int, set[Dims]] = {}
    for state, parameter in parameters_of_states(function).items():
        if shape_of(types[state]) == shape_of(types[parameter]):
            states.setdefault(parameter, set()).add(layouts[state])
    names, roles = argument_names(function), argument_roles(function)
    found: list[PlannedArgument] = []
    for i, (name, role, type_) in enumerate(zip(names, roles, types, strict=True)):
        # States that are kept differently say nothing about the parameter.
        own = states.get(i, set())
        (stored,) = own if len(own) == 1 else (layouts[i],)
        text = str(bare_type(type_))
        found.append(PlannedArgument(name, role, text, layouts[i], stored))
    return tuple(found)


def _without_time(layout: Layout | None) -> Dims:
    if layout is None:
        return ()
    return tuple(
        tuple(shard for shard in dim if shard.axis != TIME_AXIS) for dim in layout.dims
    )


def check_same_arguments(
    module: ModuleOp, planned: Sequence[PlannedArgument], what: str
) -> None:
    """
    Refuses a program that is not of the model and the batch that a plan is for: other
    parameters, inputs or labels, or other shapes of these. `what` says what the program is,
    for the message. Raises DistIRError.
    """
    function = entry_function(module)
    own = {
        name: (role, str(bare_type(type_)))
        for name, role, type_ in zip(
            argument_names(function),
            argument_roles(function),
            function.function_type.inputs.data,
            strict=True,
        )
        if role in _MATCHED
    }
    known = {a.name: (a.role, a.type) for a in planned if a.role in _MATCHED}
    for name in dict.fromkeys((*known, *own)):
        if own.get(name) == known.get(name):
            continue
        before, now = (
            f"{role} {name!r} of type {type_}" if role else f"no {name!r}"
            for role, type_ in (known.get(name, ("", "")), own.get(name, ("", "")))
        )
        raise DistIRError(
            f"the plan is for another model or another batch: it knows {before}, but "
            f"{what} has {now}; search a plan for this one"
        )


def place_arguments(
    module: ModuleOp, mesh: Mesh, planned: Sequence[PlannedArgument], *, stored: bool
) -> None:
    """
    Asks for the layouts of a plan for those arguments of a sequential program that it knows
    by name. With `stored`, parameters whose states are in smaller parts are kept like these
    and brought together once for all uses, where DTensor can say such parts.
    """
    function = entry_function(module)
    attributes, names = argument_attributes(function), argument_names(function)
    known = {argument.name: argument for argument in planned}
    for i, (name, value) in enumerate(
        zip(names, function.body.block.args, strict=True)
    ):
        if name not in known:
            continue
        own = known[name]
        layout = Layout(mesh.name, own.dims)
        kept = Layout(mesh.name, own.stored)
        if stored and kept != layout and not _cuts_runs(value.type, kept, mesh):
            attributes[i][LAYOUT] = LayoutAttr(kept)
            if value.first_use is not None:
                gathered = ConstrainOp(value, layout)
                value.replace_all_uses_with(gathered.result)
                gathered.operands[0] = value
                first = function.body.block.first_op
                assert first is not None
                function.body.block.insert_op_before(gathered, first)
        else:
            attributes[i][LAYOUT] = LayoutAttr(layout)
    set_argument_attributes(function, attributes)


def _cuts_runs(type_: Any, layout: Layout, mesh: Mesh) -> bool:
    """Whether an axis splits inside of the runs in which one before it splits."""
    return any(
        divides_runs(size, layout.dim(dim)[:count], mesh, shard.axis)
        for dim, size in enumerate(shape_of(type_))
        for count, shard in enumerate(layout.dim(dim))
    )
