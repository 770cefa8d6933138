"""ZeRO: stores optimizer states, gradients and parameters split over the data axis."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from math import prod

from xdsl.dialects.builtin import ModuleOp, TensorType, UnitAttr
from xdsl.ir import BlockArgument, Operation, SSAValue, Use
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import (
    LAYOUT,
    REDUCE_LATE,
    RESHARD_EARLY,
    ConstrainOp,
    Layout,
    LayoutAttr,
    Shard,
)
from distir.dialects.onnx_values import bytes_per_element
from distir.dialects.tensors import rank_of, shape_of
from distir.dialects.train_ops.flattening import UnflattenOp
from distir.dialects.train_ops.optimizers import SquareSumOp, UpdateOp
from distir.dialects.train_ops.splits import Split
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
from distir.sharding.layout import canonical, fits
from distir.sharding.mesh import Mesh
from distir.sharding.placement import add_placement, placement_in
from distir.transforms.flattening import (
    UpdateFlattener,
    flat_form,
    scales,
    update_of,
)

_NAMED = 4
"""How many of the tensors that stay whole a note names."""


def _storage(
    shape: tuple[int, ...],
    layout: Layout,
    mesh: Mesh,
    axis: str,
    outside: bool,
    cut_runs: bool,
    merged: int | None = None,
) -> Layout:
    """
    Returns the layout with one more dimension split over an axis: the first one that the
    axis divides evenly.

    What it divides are the parts that other axes leave, so that each device reduces,
    scatters and gathers its own part alone. Dimensions that other axes split in runs come
    last, and only with `cut_runs`, as their runs are then split further, for which all
    parts have to move. Of stacks of matrices (experts), dimensions that no other axis
    splits come first, as work may then be split along them, too. For an optimizer
    `outside` of the program, axes are in the mesh's order, as DTensor needs it, and
    dimensions whose runs the axis would divide are not split, nor is the dimension along
    which several of its parameters are `merged`.
    """
    several = len(shape) > 2
    dims = sorted(
        range(len(shape)),
        key=lambda dim: (_has_runs(layout, dim), several and bool(layout.dim(dim))),
    )
    for dim in dims:
        if _has_runs(layout, dim) and not cut_runs:
            continue
        if outside and dim == merged:
            continue
        inside = not outside and not _has_runs(layout, dim)
        split = layout.with_dim(dim, (*layout.dim(dim), Shard(axis)), len(shape))
        if not inside:
            split = request_split(layout, dim, Shard(axis), len(shape), mesh)
        if fits(shape, split, mesh) and not (
            outside and divides_runs(shape[dim], layout.dim(dim), mesh, axis)
        ):
            return canonical(shape, split, mesh)
    return layout


def _has_runs(layout: Layout, dim: int) -> bool:
    return any(shard.run is not None for shard in layout.dim(dim))


def _left_whole(names: Sequence[str], axis: str, mesh: Mesh) -> list[str]:
    """
    Returns the notes for tensors that an axis does not divide; if there are many, they name
    the first ones only.
    """
    what = f"axis {axis!r} of size {mesh.size(axis)} divides none of"
    if len(names) <= _NAMED:
        return [f"zero: {name} stays whole: {what} its dimensions" for name in names]
    shown = f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return [f"zero: {shown} stay whole: {what} their dimensions"]


def _flattened_note(
    names: Sequence[str], axis: str, mesh: Mesh, is_padded: bool
) -> str:
    """Returns the note for what is flattened, all of it with zeros behind or none of it."""
    shown = ", ".join(names[:_NAMED])
    if len(names) > _NAMED:
        shown += f" and {len(names) - _NAMED} more"
    zeros = ", with zeros behind" if is_padded else ""
    return (
        f"zero: {shown}: stored flat{zeros}, as axis {axis!r} of size "
        f"{mesh.size(axis)} divides none of the dimensions"
    )


def divides_runs(size: int, shards: Sequence[Shard], mesh: Mesh, axis: str) -> bool:
    """
    Whether splitting over an axis the part that these shards leave of a dimension cuts
    runs.
    """
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


def _bytes(value: SSAValue) -> float:
    """Returns how many bytes an element of a tensor takes."""
    assert isinstance(value.type, TensorType)
    return bytes_per_element(value.type.element_type)


def _gather_once(parameter: SSAValue, axis: str, mesh: Mesh) -> None:
    """
    Makes all uses of a parameter except its update share one copy that is whole on an axis.
    Of a parameter that is cast to a narrower type before all else, as in mixed precision,
    that is a copy of what the cast gives.
    """
    value, uses = parameter, _uses_but_update(parameter)
    if len(uses) == 1 and uses[0].operation.name == "onnx.Cast":
        value = min(uses[0].operation.results[0], parameter, key=_bytes)
        uses = _uses_but_update(value)
    if not uses:
        return
    gathered = ConstrainOp(value, Layout(mesh.name), [axis])
    for use in uses:
        use.operation.operands[use.index] = gathered.result
    if isinstance(value.owner, Operation):
        Rewriter.insert_op(gathered, InsertPoint.after(value.owner))
    else:
        Rewriter.insert_op(gathered, InsertPoint.at_start(value.owner))


def _uses_but_update(value: SSAValue) -> list[Use]:
    """Returns the uses of a value by what is no update of a parameter."""
    return [use for use in value.uses if not isinstance(use.operation, UpdateOp)]


def store_split(
    module: ModuleOp,
    stage: int,
    axis: str,
    only: Sequence[str] = ("*",),
    *,
    gather_first: bool = False,
    no_sync: bool = False,
) -> None:
    """
    Annotates what a training step keeps to be stored split over a mesh axis, as the pass
    `zero` documents. In a step that returns gradients, the gradients and parameters are
    split. With `gather_first`, parameters of stages 1 and 2 are stored split too, and
    brought together once, in front of the forward of the next step instead of behind their
    update. With `no_sync`, gradients are not scattered early: those of several micro-batches
    add up whole. Raises DistIRError.
    """
    if stage not in (1, 2, 3):
        raise DistIRError(f"zero: there is no stage {stage}; choose 1, 2 or 3")
    _Storage(module, stage, axis, only, gather_first, no_sync).split()


class _Storage:
    """What a training step keeps, and how a stage of ZeRO splits it over a mesh axis."""

    def __init__(
        self,
        module: ModuleOp,
        stage: int,
        axis: str,
        only: Sequence[str],
        gather_first: bool,
        no_sync: bool,
    ):
        self.module = module
        self.stage = stage
        self.scatters_early = stage >= 2 and not no_sync
        self.axis = axis
        self.mesh = axis_mesh(module, axis)
        self.function = entry_function(module)
        self.updates = linked_arguments(self.function)
        self.roles = argument_roles(self.function)
        self.names = argument_names(self.function)
        self.types = self.function.function_type.inputs.data
        # An optimizer outside the program updates what it is given: for it, parameters and
        # gradients are split in every stage, in a way that DTensor can express.
        self.outside = bool(parameters_of_gradients(self.function))
        self.gathers_once = stage < 3 and (self.outside or gather_first)
        everything = stage == 3 or self.gathers_once
        self.stored = ("parameter", "state") if everything else ("state",)
        self.attributes = argument_attributes(self.function)
        self.chosen = self._chosen(only)
        self.whole: list[int] = []
        """The arguments, by index, that the axis divides in no dimension."""
        self.kept: list[str] = []
        """Notes on what users want whole."""
        self.is_split = False
        self.flattener = UpdateFlattener(self.function)

    def _chosen(self, only: Sequence[str]) -> list[int]:
        """Returns the arguments of the parameters that ZeRO applies to."""
        roles, names = self.roles, self.names
        if not any(
            roles[i] in self.stored and shape_of(self.types[i])
            for i in self.updates.values()
        ):
            raise DistIRError(
                f"zero: the program updates no {' or '.join(self.stored)}, which is what "
                f"stage {self.stage} splits; differentiate it with an optimizer that has "
                f"it first"
            )
        _check_only(
            [names[i] for i in self.updates.values() if roles[i] == "parameter"], only
        )
        parameter = parameters_of_states(self.function)
        return [
            i
            for i in self.updates.values()
            if any(fnmatchcase(names[parameter.get(i, i)], p) for p in only)
        ]

    def split(self) -> None:
        """Annotates the program. Raises DistIRError."""
        stored = [
            i
            for i in self.chosen
            if self.roles[i] in self.stored and shape_of(self.types[i])
        ]
        for i in stored:
            self._split(i, cut_runs=self.outside or len(shape_of(self.types[i])) == 1)
        if not self.outside:
            self._flatten()
            for i in list(self.whole):
                if self.stage == 3 or self.roles[i] == "state":
                    self.whole.remove(i)
                    self._split(i, cut_runs=True)
        if not self.is_split:
            self._refuse()
        set_argument_attributes(self.function, self.attributes)
        self.flattener.finish()
        whole = [self.names[i] for i in self.whole]
        add_notes(self.module, _left_whole(whole, self.axis, self.mesh) + self.kept)
        if self.scatters_early:
            self._reshard_early()
        if not self.outside:
            self._scatter_before_clipping()

    def _split(self, i: int, cut_runs: bool) -> None:
        """
        Splits an argument in one of its dimensions, if the axis divides one; with
        `cut_runs` also one that is split in runs already.
        """
        before = requested_layout(self.attributes[i]) or Layout(self.mesh.name)
        if self.axis in fixed_axes(self.attributes[i]):
            if self.axis in before.split_axes:
                self.is_split = True
            else:
                by = origin_of(self.attributes[i], self.axis)
                self.kept.append(
                    f"zero: {self.names[i]} stays whole over axis {self.axis!r}, as {by} "
                    f"asks"
                )
            return
        shape = shape_of(self.types[i])
        repacked = repacked_of(self.attributes[i])
        merged = None if repacked is None else repacked.dim
        layout = _storage(
            shape, before, self.mesh, self.axis, self.outside, cut_runs, merged
        )
        if layout == before:
            self.whole.append(i)
            return
        self.attributes[i][LAYOUT] = LayoutAttr(layout)
        if self.gathers_once and (self.outside or self.roles[i] == "parameter"):
            _gather_once(self.function.body.block.args[i], self.axis, self.mesh)
        self.is_split = True

    def _flatten(self) -> None:
        """Flattens what is left whole, together with the updates that are elementwise."""
        found: dict[UpdateOp, list[int]] = {}
        # A flat parameter is gathered for each use, which only stage 3 is to do.
        stored_flat = ("parameter", "state") if self.stage == 3 else ("state",)
        for result, argument in self.updates.items():
            op = update_of(self.function, result)
            if op is not None and self.roles[argument] in stored_flat:
                found.setdefault(op, []).append(argument)
        names: dict[bool, list[str]] = {}
        for op, stored in found.items():
            if not set(stored) <= set(self.whole) or not self._are_alike(op, stored):
                continue
            (before,) = self._requests(stored) or {Layout(self.mesh.name)}
            shape = shape_of(self.types[stored[0]])
            axes, splits = _blocks(shape, before, self.mesh)
            form = flat_form(shape, splits, self.mesh.size(self.axis))
            dims = tuple((Shard(axis),) for axis in (self.axis, *axes))
            self.flattener.flatten(op, form, stored)
            for i in stored:
                self.attributes[i][LAYOUT] = LayoutAttr(Layout(self.mesh.name, dims))
                self.whole.remove(i)
            is_padded = prod(form.flat_shape) > prod(shape)
            names.setdefault(is_padded, []).extend(self.names[i] for i in stored)
            self.is_split = True
        for is_padded, some in names.items():
            note = _flattened_note(some, self.axis, self.mesh, is_padded)
            self.kept.append(note)

    def _are_alike(self, op: UpdateOp, stored: Sequence[int]) -> bool:
        """
        Whether arguments can be flattened in the same way: other axes do the same to them,
        and nothing but the update uses those that are states.
        """
        uses = [
            use.operation
            for i in stored
            if self.roles[i] == "state"
            for use in self.function.args[i].uses
        ]
        return len(self._requests(stored)) < 2 and all(user is op for user in uses)

    def _requests(self, stored: Sequence[int]) -> set[Layout]:
        """Returns the different layouts that are requested for these arguments."""
        found = (requested_layout(self.attributes[i]) for i in stored)
        return {layout for layout in found if layout is not None}

    def _reshard_early(self) -> None:
        """Requests that gradients are reduced and scattered where they are computed."""
        for result, argument in self.updates.items():
            owner = return_op(self.function).operands[result].owner
            if (
                argument in self.chosen
                and isinstance(owner, Operation)
                and not isinstance(owner, UnflattenOp)
            ):
                owner.attributes[RESHARD_EARLY] = UnitAttr()
        for op in self.flattener.done:
            op.attributes[RESHARD_EARLY] = UnitAttr()

    def _scatter_before_clipping(self) -> None:
        """
        Requests that gradients are scattered before their norm is computed, if they are
        clipped by it, so that each device adds up the squares of its part. By bytes alone,
        reducing a gradient once for all is as good as scattering it for each of two uses.
        """
        for op in list(self.function.body.block.ops):
            if not isinstance(op, UpdateOp):
                continue
            layouts = [
                request
                for value in op.tensors
                if isinstance(value, BlockArgument)
                and (request := requested_layout(self.attributes[value.index]))
                and self.axis in request.split_axes
            ]
            if layouts and (gradient := _clipped_gradient(op)) is not None:
                self._scatter(gradient, layouts[0], op)

    def _scatter(self, gradient: SSAValue, stored: Layout, update: UpdateOp) -> None:
        """Requests that all uses of a gradient share the part that is stored like that."""
        placement = placement_in(stored, self.axis)
        layout = add_placement(
            Layout(self.mesh.name), self.axis, placement, rank_of(gradient.type)
        )
        uses = list(gradient.uses)
        constrain = ConstrainOp(gradient, layout, [self.axis])
        constrain.attributes[REDUCE_LATE] = UnitAttr()
        if RESHARD_EARLY in update.attributes:
            constrain.attributes[RESHARD_EARLY] = UnitAttr()
        for use in uses:
            use.operation.operands[use.index] = constrain.result
        assert isinstance(gradient.owner, Operation)
        Rewriter.insert_op(constrain, InsertPoint.after(gradient.owner))

    def _refuse(self) -> None:
        """Raises DistIRError, as there is nothing left to split."""
        axis, mesh = self.axis, self.mesh
        if self.kept:
            raise DistIRError(
                f"zero: nothing is left to split over axis {axis!r}: "
                f"{'; '.join(self.kept[:4])}; ask for stage 0, or for less to be whole"
            )
        whole = [self.names[i] for i in self.whole]
        raise DistIRError(
            f"zero: axis {axis!r} of size {mesh.size(axis)} divides no dimension of "
            f"{', '.join(whole)}; choose another degree of data parallelism"
        )


def _clipped_gradient(op: UpdateOp) -> SSAValue | None:
    """
    Returns the gradient of an update as the backward computes it, before it is converted and
    scaled, if sums of squares are made of it on the way; else None.
    """
    value, is_clipped = op.operands[1], False
    while True:
        is_clipped |= any(isinstance(u.operation, SquareSumOp) for u in value.uses)
        if not isinstance(value.owner, Operation) or not scales(value.owner):
            return value if is_clipped else None
        value = max(value.owner.operands, key=lambda v: rank_of(v.type))


def _blocks(
    shape: Sequence[int], layout: Layout, mesh: Mesh
) -> tuple[list[str], list[Split]]:
    """
    Returns the axes of a layout, and what each of them splits of a tensor of that shape.
    """
    axes: list[str] = []
    splits: list[Split] = []
    for dim, size in enumerate(shape):
        for axis, run in layout.dim(dim):
            parts = mesh.size(axis)
            size //= parts
            axes.append(axis)
            splits.append(Split(dim, parts, run or size))
    return axes, splits
