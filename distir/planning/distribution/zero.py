"""ZeRO: stores optimizer states, gradients and parameters split over the data axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from math import prod

from xdsl.dialects.builtin import ModuleOp, TensorType, UnitAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue, Use
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import LAYOUT, ConstrainOp, Layout, LayoutAttr, Shard
from distir.dialects.dist_attributes import REDUCE_LATE, RESHARD_EARLY
from distir.dialects.onnx_ops.traits import ELEMENTWISE
from distir.dialects.onnx_ops.values import bytes_per_element
from distir.dialects.tensors import rank_of, shape_of
from distir.dialects.train_ops.adafactor import FactoredDirectionOp, FactorSumsOp
from distir.dialects.train_ops.flattening import UnflattenOp
from distir.dialects.train_ops.optimizers import SquareSumOp, UpdateOp
from distir.dialects.train_ops.quantized_states import QuantizeStateOp
from distir.errors import DistIRError, did_you_mean
from distir.planning.annotations import (
    add_notes,
    axis_mesh,
    fixed_axes,
    origin_of,
    requested_layout,
)
from distir.planning.distribution.stored_layouts import (
    axes_text,
    blocks_of,
    flattened_note,
    left_whole_notes,
    split_further,
)
from distir.program import (
    BATCH_ROLES,
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
from distir.program.repacking import repacked_of
from distir.sharding.layout import in_mesh_order
from distir.sharding.mesh import Mesh
from distir.sharding.placement import add_placement, placement_in
from distir.transforms.uneven_sizes.flattening import (
    UpdateFlattener,
    flat_form,
    scales,
    update_of,
)


def _check_only(known: Sequence[str], only: Sequence[str]) -> None:
    """Raises DistIRError if a pattern of `only` matches none of the names `known`."""
    for pattern in only:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise DistIRError(
                f"zero: no parameter that is updated is called {pattern!r}; "
                f"{did_you_mean(pattern, known)}the program has "
                f"{', '.join(known[:8])}{', ...' if len(known) > 8 else ''}"
            )


def _bytes(value: SSAValue) -> float:
    """Returns the size in bytes of one element of the tensor `value`."""
    assert isinstance(value.type, TensorType)
    return bytes_per_element(value.type.element_type)


def _gather_once(parameter: SSAValue, axes: Sequence[str], mesh: Mesh) -> None:
    """
    Makes all uses of a parameter, except its update, share one copy that is not split
    over `axes`. If the parameter is first cast to a narrower type, as in mixed
    precision, the copy is made after the cast.
    """
    value, uses = parameter, _uses_but_update(parameter)
    if len(uses) == 1 and uses[0].operation.name == "onnx.Cast":
        value = min(uses[0].operation.results[0], parameter, key=_bytes)
        uses = _uses_but_update(value)
    if not uses:
        return
    gathered = ConstrainOp(value, Layout(mesh.name), axes)
    for use in uses:
        use.operation.operands[use.index] = gathered.result
    if isinstance(value.owner, Operation):
        Rewriter.insert_op(gathered, InsertPoint.after(value.owner))
    else:
        Rewriter.insert_op(gathered, InsertPoint.at_start(value.owner))


def _rows(stack: SSAValue) -> list[SSAValue]:
    """
    Returns the rows that a program slices out of `stack`, such as the parameters of
    single layers in a program that loops over a stack of all layers.
    """
    shape = shape_of(stack)
    slices = [
        use.operation
        for use in stack.uses
        if use.operation.name == "onnx.Slice" and not use.index
    ]
    rows = [op.results[0] for op in slices]
    is_stack = shape[:1] > (1,)
    return [row for row in rows if is_stack and shape_of(row) == (1, *shape[1:])]


def _keep_rows_split(stack: SSAValue, axes: Sequence[str], layout: Layout) -> None:
    """
    Makes all uses of each row of a stack of parameters take the row split over `axes`,
    like the stack, which has the layout `layout`. Each use then gathers its row, not
    the whole stack.
    """
    stored_layout = _on_axes(layout, axes, rank_of(stack.type))
    for row in _rows(stack):
        uses = list(row.uses)
        stored = ConstrainOp(row, stored_layout, axes)
        for use in uses:
            use.operation.operands[use.index] = stored.result
        assert isinstance(row.owner, Operation)
        Rewriter.insert_op(stored, InsertPoint.after(row.owner))


def _on_axes(layout: Layout, axes: Sequence[str], rank: int) -> Layout:
    """
    Returns the part of `layout`, the layout of a value of rank `rank`, that concerns
    `axes`.
    """
    found = Layout(layout.mesh)
    for axis in axes:
        found = add_placement(found, axis, placement_in(layout, axis), rank)
    return found


def _uses_but_update(value: SSAValue) -> list[Use]:
    """
    Returns the uses of `value`, except uses by updates of parameters and by their
    norms.
    """
    return [
        use
        for use in value.uses
        if not isinstance(use.operation, UpdateOp | SquareSumOp)
    ]


def store_split(
    module: ModuleOp,
    stage: int,
    axes: Sequence[str],
    only: Sequence[str] = ("*",),
    *,
    gather_first: bool = False,
    no_sync: bool = False,
) -> None:
    """
    Annotates a training step so that it stores tensors split over the mesh axes `axes`,
    as the documentation of the pass `zero` describes for ZeRO stage `stage`. In a step
    that returns gradients, the gradients and parameters are split. `only` lists
    patterns for the names of the parameters to treat. With `gather_first`, parameters
    of stages 1 and 2 are stored split too; they are gathered once before the next
    forward pass, instead of after their update. With `no_sync`, gradients are not
    scattered early: whole gradients are summed over micro-batches. Raises DistIRError
    if nothing can be split.
    """
    if stage not in (1, 2, 3):
        raise DistIRError(f"zero: there is no stage {stage}; choose 1, 2 or 3")
    _Storage(module, stage, axes, only, gather_first, no_sync).split()


class _Storage:
    """
    The tensors that a training step stores, and their split over mesh axes by a ZeRO
    stage.
    """

    def __init__(
        self,
        module: ModuleOp,
        stage: int,
        axes: Sequence[str],
        only: Sequence[str],
        gather_first: bool,
        no_sync: bool,
    ):
        self.module = module
        self.stage = stage
        self.scatters_early = stage >= 2 and not no_sync
        self.axes = tuple(axes)
        self.mesh = axis_mesh(module, axes[0])
        for axis in axes[1:]:
            axis_mesh(module, axis)
        self.function = entry_function(module)
        self.roles = argument_roles(self.function)
        self.updates = {
            result: argument
            for result, argument in linked_arguments(self.function).items()
            if self.roles[argument] not in BATCH_ROLES
        }
        self.names = argument_names(self.function)
        self.types = self.function.function_type.inputs.data
        # An optimizer outside the program updates what it is given: for it, parameters and
        # gradients are split in every stage, in a way that DTensor can express.
        self.outside = bool(parameters_of_gradients(self.function))
        self.gathers_once = stage < 3 and (self.outside or gather_first)
        everything = stage == 3 or self.gathers_once
        self.stored = ("parameter", "state") if everything else ("state",)
        self.attributes = argument_attributes(self.function)
        self.parameter = parameters_of_states(self.function)
        self.chosen = self._chosen(only)
        self.whole: list[int] = []
        """
        The indices of the arguments that stay whole because the axes divide none of
        their dimensions.
        """
        self.kept: list[str] = []
        """Notes on tensors that users want whole, and on flattened tensors."""
        self.is_split = False
        self.flattener = UpdateFlattener(self.function)

    def _chosen(self, only: Sequence[str]) -> list[int]:
        """
        Returns the indices of the arguments that ZeRO applies to: updated parameters
        whose names match a pattern of `only`, and their states. Raises DistIRError if
        the program updates no tensor that the stage splits.
        """
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
        return [
            i
            for i in self.updates.values()
            if any(fnmatchcase(names[self.parameter.get(i, i)], p) for p in only)
        ]

    def split(self) -> None:
        """Annotates the program. Raises DistIRError if nothing can be split."""
        stored = [
            i
            for i in self.chosen
            if self.roles[i] in self.stored and shape_of(self.types[i])
        ]
        for i in stored:
            is_flat = len(shape_of(self.types[i])) == 1
            self._split(i, cut_runs=self.outside or is_flat, partly=self.outside)
        if not self.outside:
            self._flatten()
            for i in list(self.whole):
                if self.stage == 3 or self.roles[i] == "state":
                    self.whole.remove(i)
                    self._split(i, cut_runs=True, partly=True)
        if not self.is_split:
            self._refuse()
        set_argument_attributes(self.function, self.attributes)
        self.flattener.finish()
        whole = [self.names[i] for i in self.whole]
        add_notes(
            self.module, left_whole_notes(whole, self.axes, self.mesh) + self.kept
        )
        if self.scatters_early:
            self._reshard_early()
        if not self.outside:
            self._scatter_before_clipping()
            self._scatter_for_states()

    def _split(self, i: int, *, cut_runs: bool, partly: bool) -> None:
        """
        Splits dimensions of argument `i` over all axes that do not split it yet. With
        `cut_runs`, dimensions with a block-cyclic split may be split further. If an
        axis divides no dimension, the argument stays whole, unless `partly` allows a
        split over the other axes alone.
        """
        before = requested_layout(self.attributes[i]) or Layout(self.mesh.name)
        axes = self._free_axes(i, before)
        if not axes:
            return
        shape = shape_of(self.types[i])
        repacked = repacked_of(self.attributes[i])
        merged = None if repacked is None else repacked.dim
        arguments = self.function.body.block.args
        stack = arguments[self.parameter.get(i, i)]
        rows = _rows(stack) if self.stage == 3 else []
        layout, done = before, list[str]()
        for axis in axes:
            further = split_further(
                shape,
                layout,
                self.mesh,
                axis,
                self.outside,
                cut_runs,
                merged,
                last=0 if rows else None,
            )
            if further != layout:
                done.append(axis)
            layout = further
        if not done or (len(done) < len(axes) and not partly):
            self.whole.append(i)
            return
        self.attributes[i][LAYOUT] = LayoutAttr(layout)
        if self.gathers_once and (self.outside or self.roles[i] == "parameter"):
            _gather_once(arguments[i], done, self.mesh)
        elif rows and stack is arguments[i] and not layout.dim(0):
            _keep_rows_split(stack, done, layout)
        self.is_split = True

    def _free_axes(self, i: int, before: Layout) -> list[str]:
        """
        Returns the axes over which argument `i` can still be split. Adds a note for
        each axis over which the user wants the argument whole.
        """
        found: list[str] = []
        for axis in self.axes:
            if axis in before.split_axes:
                # Nothing is left to do for experts, which their axis splits, and for
                # users' splits.
                self.is_split |= axis in fixed_axes(self.attributes[i])
            elif axis in fixed_axes(self.attributes[i]):
                by = origin_of(self.attributes[i], axis)
                self.kept.append(
                    f"zero: {self.names[i]} stays whole over axis {axis!r}, as {by} asks"
                )
            else:
                found.append(axis)
        return found

    def _flatten(self) -> None:
        """
        Flattens parameters and states that are still whole and whose update is
        elementwise, so that they can be split. Stages 1 and 2 flatten states only.
        """
        found: dict[UpdateOp, list[int]] = {}
        # A flat parameter is gathered for each use; only stage 3 does this.
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
            axes, splits = blocks_of(shape, before, self.mesh)
            over = [axis for axis in self.axes if axis not in axes]
            form = flat_form(shape, splits, prod(map(self.mesh.size, over)))
            dims = (
                tuple(Shard(axis) for axis in over),
                *((Shard(axis),) for axis in axes),
            )
            self.flattener.flatten(op, form, stored)
            for i in stored:
                self.attributes[i][LAYOUT] = LayoutAttr(Layout(self.mesh.name, dims))
                self.whole.remove(i)
            is_padded = prod(form.flat_shape) > prod(shape)
            names.setdefault(is_padded, []).extend(self.names[i] for i in stored)
            self.is_split = True
        for is_padded, some in names.items():
            note = flattened_note(some, self.axes, self.mesh, is_padded)
            self.kept.append(note)

    def _are_alike(self, op: UpdateOp, stored: Sequence[int]) -> bool:
        """
        Whether the arguments `stored` can be flattened in the same way: all have the
        same requested layout, and states among them are used by the update `op` only.
        """
        uses = [
            use.operation
            for i in stored
            if self.roles[i] == "state"
            for use in self.function.args[i].uses
        ]
        return len(self._requests(stored)) < 2 and all(user is op for user in uses)

    def _requests(self, stored: Sequence[int]) -> set[Layout]:
        """Returns the set of layouts that are requested for the arguments `stored`."""
        found = (requested_layout(self.attributes[i]) for i in stored)
        return {layout for layout in found if layout is not None}

    def _reshard_early(self) -> None:
        """
        Requests that gradients are reduced and scattered as soon as they are computed.
        """
        for result, argument in self.updates.items():
            owner = return_op(self.function).operands[result].owner
            while (
                argument in self.chosen
                and isinstance(owner, Operation)
                and not isinstance(owner, UnflattenOp)
            ):
                owner.attributes[RESHARD_EARLY] = UnitAttr()
                if not isinstance(owner, QuantizeStateOp) and owner.name != "onnx.Cast":
                    break
                owner = owner.operands[0].owner
        for op in self.flattener.done:
            op.attributes[RESHARD_EARLY] = UnitAttr()

    def _scatter_before_clipping(self) -> None:
        """
        Requests that gradients that are clipped by their norm are scattered before the
        norm is computed. Each device then sums the squares of its own part. Without
        this request the planner might reduce a whole gradient once, which costs as many
        bytes as two scatters.
        """
        for op in list(self.function.body.block.ops):
            if not isinstance(op, UpdateOp):
                continue
            layouts = [
                request
                for value in op.tensors
                if isinstance(value, BlockArgument)
                and (request := requested_layout(self.attributes[value.index]))
                and not set(self.axes).isdisjoint(request.split_axes)
            ]
            for gradient in _measured_gradients(op) if layouts else ():
                self._scatter(gradient, layouts[0], RESHARD_EARLY in op.attributes)

    def _scatter_for_states(self) -> None:
        """
        Requests one scattered copy of each gradient from which an optimizer computes
        several states, as Adam does. This is for optimizers whose update consists of
        single ops. In stage 3, rows that a loop stacks may be scattered in the loop's
        function, so that no device keeps whole rows until the end; each device may
        compute only parts of the rows.
        """
        returned = return_op(self.function).operands
        results = {
            returned[result]: argument
            for result, argument in self.updates.items()
            if argument in self.chosen and self.roles[argument] == "state"
        }
        for gradient, argument in _shared_gradients(self.function, results).items():
            layout = requested_layout(self.attributes[argument])
            if layout and not set(self.axes).isdisjoint(layout.split_axes):
                rows = [] if layout.dim(0) else _stacked_rows(gradient)
                for value in rows or [gradient]:
                    late = self.stage < 3 or not rows
                    self._scatter(value, layout, self.scatters_early, late)

    def _scatter(
        self, gradient: SSAValue, stored: Layout, early: bool, late: bool = True
    ) -> None:
        """
        Requests that all uses of `gradient` share one scattered copy, split like the
        stored layout `stored`. With `early`, the gradient is scattered as soon as it is
        computed. Without `late`, a value from which the gradient is computed may be
        scattered instead of the gradient itself.
        """
        axes = [axis for axis in self.axes if axis in stored.split_axes]
        # Axes are planned in the mesh's order; inside of others they deal out runs.
        stored = in_mesh_order(shape_of(gradient.type), stored, self.mesh)
        layout = _on_axes(stored, axes, rank_of(gradient.type))
        uses = list(gradient.uses)
        constrain = ConstrainOp(gradient, layout, axes)
        if late:
            constrain.attributes[REDUCE_LATE] = UnitAttr()
        if early:
            constrain.attributes[RESHARD_EARLY] = UnitAttr()
        for use in uses:
            use.operation.operands[use.index] = constrain.result
        assert isinstance(gradient.owner, Operation)
        Rewriter.insert_op(constrain, InsertPoint.after(gradient.owner))

    def _refuse(self) -> None:
        """Raises DistIRError with the reason why nothing can be split."""
        if self.kept:
            names = " and ".join(map(repr, self.axes))
            raise DistIRError(
                f"zero: nothing is left to split over axis {names}: "
                f"{'; '.join(self.kept[:4])}; ask for stage 0, or for less to be whole"
            )
        whole = [self.names[i] for i in self.whole]
        raise DistIRError(
            f"zero: {axes_text(self.axes, self.mesh)} divides no dimension of "
            f"{', '.join(whole)}; choose another degree of data parallelism"
        )


def _stacked_rows(value: SSAValue) -> list[SSAValue]:
    """
    Returns the rows that a program stacks to get `value`, such as the gradients of
    single layers that a loop over layers writes. Returns an empty list for any other
    value.
    """
    owner = value.owner
    if not isinstance(owner, Operation) or owner.name != "onnx.Concat":
        return []
    row = (1, *shape_of(value.type)[1:])
    rows = list(dict.fromkeys(owner.operands))
    is_stack = all(
        shape_of(r.type) == row and isinstance(r.owner, Operation) for r in rows
    )
    return rows if is_stack and shape_of(value.type)[0] == len(rows) else []


def _measured_gradients(op: UpdateOp) -> list[SSAValue]:
    """
    Returns a list with the gradient of an update, as the backward pass computes it
    before casts and scaling. The gradient is in the list only if the program computes
    sums of its squares, for clipping or for the direction of the update. If the program
    computes such sums of a direction, the list holds this direction too.
    """
    found: list[SSAValue] = []
    value: SSAValue | None = op.gradient_operand
    while value is not None:
        is_measured, origin = False, value
        while True:
            is_measured |= any(
                isinstance(use.operation, SquareSumOp | FactorSumsOp)
                for use in origin.uses
            )
            if not isinstance(origin.owner, Operation) or not scales(origin.owner):
                break
            origin = max(origin.owner.operands, key=lambda v: rank_of(v.type))
        if is_measured:
            found.append(origin)
        owner = origin.owner
        value = owner.gradient if isinstance(owner, FactoredDirectionOp) else None
    return found


def _shared_gradients(
    function: FuncOp, results: Mapping[SSAValue, int]
) -> dict[SSAValue, int]:
    """
    Finds the gradients of parameters in an optimizer whose update consists of single
    ops. A value is such a gradient if several elementwise ops compute new states from
    it, and if elementwise ops do not compute the value itself from arguments. `results`
    maps new states to the indices of the old states, which have the same shape. Returns
    each gradient with one of these indices.
    """
    states = dict(results)
    users: dict[SSAValue, set[Operation]] = {}
    ops = list(function.body.block.ops)
    for op in reversed(ops):
        for result in op.results:
            if result in states and ELEMENTWISE.of(op):
                for operand in op.operands:
                    if shape_of(operand.type) == shape_of(result.type):
                        states.setdefault(operand, states[result])
                        users.setdefault(operand, set()).add(op)
    of_arguments: set[SSAValue] = set(function.body.block.args)
    for op in ops:
        if ELEMENTWISE.of(op) and any(
            v in of_arguments and shape_of(v.type) == shape_of(op.results[0].type)
            for v in op.operands
        ):
            of_arguments.update(op.results)
    return {
        value: states[value]
        for value, found in users.items()
        if len(found) > 1 and value not in of_arguments
    }
