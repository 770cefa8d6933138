"""
The arguments of a program with the layouts of a plan. In another program of the same
model, the arguments are found by name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import LAYOUT, ConstrainOp, Layout, LayoutAttr, Shard
from distir.dialects.onnx_ops.shapes import bare_type
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.planning.annotations import requested_layout
from distir.planning.distribution.stored_layouts import divides_runs
from distir.planning.plans.programs import batch_of
from distir.program import (
    Program,
    argument_attributes,
    arguments_of,
    entry_function,
    gradients_of_results,
    set_argument_attributes,
)
from distir.sharding.mesh import TIME_AXIS, Mesh

Dims = tuple[tuple[Shard, ...], ...]
"""The axes that split each dimension of a tensor, outermost axis first."""

_OF_BATCH = ("input", "label")
"""Roles of arguments whose first dimension may be the batch."""

_MATCHED = ("parameter", *_OF_BATCH)
"""
Roles of the arguments that every program of a model has, whichever optimizer it uses.
"""

_FIRST_SIZE = re.compile(r"tensor<(\d+)x")


@dataclass(frozen=True)
class PlannedArgument:
    """
    An argument of the program for which a plan was made.

    - `name`, `role`, `type`: its name, its role and its tensor type as text;
    - `dims`: for each dimension, the axes over which the plan splits it;
    - `stored`: for each dimension, the axes over which the plan splits the optimizer
      states of this parameter. The states may be split into smaller parts than the
      parameter.
    """

    name: str
    role: str
    type: str
    dims: Dims = ()
    stored: Dims = ()

    @property
    def first_size(self) -> int | None:
        """The size of the first dimension, or None for a scalar."""
        found = _FIRST_SIZE.match(self.type)
        return int(found[1]) if found else None

    def to_json(self) -> dict[str, Any]:
        """Returns the argument as JSON data, for `from_json`."""
        return {**vars(self), "dims": self.dims, "stored": self.stored}

    @staticmethod
    def from_json(data: Any) -> PlannedArgument:
        """
        Restores an argument from the JSON data that `to_json` returned. Raises
        KeyError, TypeError or ValueError if `data` is not such data.
        """
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
    """
    Returns the arguments of a sequential program, each with the layout that its
    annotation requests. The micro-batch axis is left out of the layouts.
    """
    program = Program(module)
    arguments = program.arguments
    layouts = [_without_time(requested_layout(a.attributes)) for a in arguments]
    states: dict[int, set[Dims]] = {}
    for state, parameter in program.states.items():
        if shape_of(arguments[state].type) == shape_of(arguments[parameter].type):
            states.setdefault(parameter, set()).add(layouts[state])
    found: list[PlannedArgument] = []
    for argument, layout in zip(arguments, layouts, strict=True):
        # States that are kept differently say nothing about the parameter.
        own = states.get(argument.index, set())
        (stored,) = own if len(own) == 1 else (layout,)
        text = str(bare_type(argument.type))
        found.append(
            PlannedArgument(argument.name, argument.role, text, layout, stored)
        )
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
    Checks that the parameters, inputs and labels of `module` have the same names, roles
    and types as the plan (`planned`). Raises DistIRError if they differ, because the
    plan is then for another model or batch size. Labels may differ if the caller of
    `module` computes its loss. `what` names the program in the error message.
    """
    is_outside = bool(gradients_of_results(entry_function(module)))
    matched = [role for role in _MATCHED if role != "label" or not is_outside]
    own = {
        argument.name: (argument.role, str(bare_type(argument.type)))
        for argument in Program(module).arguments
        if argument.role in matched
    }
    known = {a.name: (a.role, a.type) for a in planned if a.role in matched}
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
    Annotates the arguments of a sequential program with the layouts of a plan.
    Arguments are found by name; arguments that are not in the plan stay as they are.

    A training script passes all inputs and labels with the same split of the batch.
    Each of them is therefore annotated with that split, and a constraint changes it to
    the plan's layout before its uses. With `stored`, parameters arrive in the smaller
    parts of their optimizer states, if DTensor can express these parts, and constraints
    change them to the plan's layout as well.
    """
    function = entry_function(module)
    attributes = argument_attributes(function)
    known = {argument.name: argument for argument in planned}
    batch, split = batch_of(module), _split_of_batch(planned)
    block = function.body.block
    axes = [name for name, _ in mesh.axes if name != TIME_AXIS]
    for argument in arguments_of(function):
        if argument.name not in known:
            continue
        value, own = argument.value, known[argument.name]
        shape = shape_of(value.type)
        layout = given = Layout(mesh.name, own.dims)
        if own.role in _OF_BATCH and shape[:1] == (batch,):
            given = _with_batch(layout, split, len(shape))
        elif own.role == "parameter" and stored:
            kept = Layout(mesh.name, own.stored)
            given = layout if _cuts_runs(value.type, kept, mesh) else kept
        attributes[value.index][LAYOUT] = LayoutAttr(given)
        if given != layout and value.first_use is not None:
            brought = ConstrainOp(value, layout, axes)
            value.replace_all_uses_with(brought.result)
            brought.operands[0] = value
            assert block.first_op is not None
            block.insert_op_before(brought, block.first_op)
    set_argument_attributes(function, attributes)


def _split_of_batch(planned: Sequence[PlannedArgument]) -> tuple[Shard, ...]:
    """
    Returns the split of the batch in the inputs and labels of a plan. If they split the
    batch differently, returns the split over the most axes. Returns an empty tuple if
    no input or label splits the batch.
    """
    of_batch = [a for a in planned if a.role in _OF_BATCH and a.first_size is not None]
    size = of_batch[0].first_size if of_batch else None
    splits = [a.dims[0] for a in of_batch if a.first_size == size and a.dims]
    return max(splits, key=len, default=())


def _with_batch(layout: Layout, split: tuple[Shard, ...], rank: int) -> Layout:
    """
    Returns `layout` with its first dimension split by exactly `split`. The axes of
    `split` are removed from all dimensions after the first. `rank` is the number of
    dimensions.
    """
    axes = {shard.axis for shard in split}
    others = [
        tuple(shard for shard in dim if shard.axis not in axes)
        for dim in layout.full_dims(rank)[1:]
    ]
    return Layout(layout.mesh, (split, *others))


def _cuts_runs(type_: Any, layout: Layout, mesh: Mesh) -> bool:
    """
    Whether any axis in `layout` cuts blocks of a block-cyclic split. An axis cuts
    blocks if it splits a dimension inside the blocks (runs) of an earlier axis, so that
    its parts are not whole blocks.
    """
    return any(
        divides_runs(size, layout.dim(dim)[:count], mesh, shard.axis)
        for dim, size in enumerate(shape_of(type_))
        for count, shard in enumerate(layout.dim(dim))
    )
