"""
Turns values, ops and functions for all micro-batches into values, ops and functions for
one micro-batch on the mesh of one stage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import (
    FunctionType,
    StringAttr,
    SymbolRefAttr,
    TensorType,
    i64,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from distir.dialects.collective_ops.per_rank import CoordinateOp
from distir.dialects.dist import Layout, LayoutAttr, ReshardOp, layout_of, with_layout
from distir.dialects.dist_attributes import COMPILED
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.block_floats import QuantizeBlocksOp
from distir.errors import DistIRError
from distir.program import called, describe, erase_dead, free_name, made_with
from distir.sharding.local import local_form, local_ops_along
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.placement import REPLICATED, SplitPlacement
from distir.sharding.rule import Rule, infer, rule_for
from distir.transforms.pipelines.kinds import whole_batch_remedy
from distir.transforms.pipelines.over_time import (
    Axes,
    FoldedTypes,
    over_time,
    split_over_time,
)
from distir.transforms.placed_ops import PlacedOps


class PartBuilder(PlacedOps):
    """Builds ops on the mesh of a stage, and reshards values."""

    def resharded(self, value: SSAValue, type_: Attribute) -> SSAValue:
        """Returns `value` with the type `type_`, resharded if its layout differs."""
        if value.type == type_:
            return value
        assert isinstance(type_, TensorType)
        self.ops.append(ReshardOp(value, type_))
        return self.ops[-1].results[0]


def part_ops(
    source: SSAValue,
    target: Attribute,
    placement: SplitPlacement,
    count: int,
    number: SSAValue,
    mesh: Mesh,
) -> list[Operation]:
    """
    Returns ops that take a micro-batch's part of `source`. The result of the last op is
    the part. The micro-batch is an operand, so that one function serves all
    micro-batches.

    - `target`: the type of the part;
    - `placement`: the division of `source` into `count` parts;
    - `number`: the index of the micro-batch, as a value;
    - `mesh`: the mesh of `source` and of the part.
    """
    build = PartBuilder(mesh)
    shape, dim = shape_of(source.type), placement.dim
    run = placement.run or shape[dim] // count
    before, after = shape[:dim], shape[dim + 1 :]
    layout = layout_of(source)
    assert layout is not None and isinstance(source.type, TensorType)
    together = layout.with_dim(dim, (), len(shape))
    value = build.resharded(source, with_layout(source.type, together))
    # Along that dimension, the micro-batches' runs alternate.
    rounds = shape[dim] // (count * run)
    turns = (rounds,) if rounds > 1 else ()
    value = build.shaped("Reshape", value, (*before, *turns, count, run, *after))
    kept = (*before, *turns, run, *after)
    value = build.add("Gather", [value, number], kept, axis=dim + len(turns))
    if turns:
        value = build.shaped("Reshape", value, (*before, rounds * run, *after))
    build.resharded(value, target)
    return build.ops


def is_repeated(op: Operation) -> bool:
    """
    Whether `op` takes a micro-batch's part of a value that repeats along the batch, so
    that all parts are equal.
    """
    expand = op.operands[0].owner if isinstance(op, ReshardOp) else None
    if not isinstance(expand, Operation) or expand.name != "onnx.Expand":
        return False
    before, after = shape_of(expand.operands[0].type), shape_of(op.results[0].type)
    place = split_over_time(op.results[0]).dim - (len(after) - len(before))
    return place < 0 or before[place] == 1


def repeated_ops(source: SSAValue, target: Attribute, mesh: Mesh) -> list[Operation]:
    """
    Returns ops that repeat `source` along the batch dimension of one micro-batch, up to
    the type `target`. The result of the last op is the repeated value.
    """
    build = PartBuilder(mesh)
    build.resharded(build.shaped("Expand", source, shape_of(target)), target)
    return build.ops


NUMBER = "micro_batch"
"""The name of the argument with the index of the micro-batch."""


@dataclass
class Fold:
    """
    Removes the micro-batch axis of a program's mesh. A program for all micro-batches
    thus becomes a program for a single micro-batch on the mesh of a stage. A function
    for a single micro-batch is called folded. If it needs the index of the micro-batch,
    which was the coordinate on the micro-batch axis, the index is its last argument.

    - `functions`: the functions of the program by name;
    - `entry`: the name of the entry function;
    - `mesh`: the program's mesh, whose first axis is the micro-batch axis;
    - `stages`: the meshes, without that axis, on which stages run;
    - `types`: the types of values on these meshes;
    - `rule_of`, `rule_of_part`: return the sharding rules of ops of the program, and of
      ops for one micro-batch;
    - `made`: the folded functions, one for each function of the program and mesh of its
      calls.
    """

    functions: Mapping[str, FuncOp]
    entry: str
    mesh: Mesh
    stages: Sequence[Mesh]
    types: FoldedTypes
    rule_of: Callable[[Operation], Rule]
    rule_of_part: Callable[[Operation], Rule] = rule_for
    made: dict[str, FuncOp] = field(default_factory=dict[str, FuncOp])
    _known: dict[tuple[str, str], tuple[str, bool]] = field(
        default_factory=dict[tuple[str, str], tuple[str, bool]]
    )
    # The first version of each function on meshes with these axes, and whether it takes the
    # micro-batch's number; the name before folding of each version, and its mesh.
    _first: dict[tuple[str, Axes], tuple[FuncOp, bool]] = field(
        default_factory=dict[tuple[str, Axes], tuple[FuncOp, bool]]
    )
    _origin: dict[str, tuple[str, str]] = field(
        default_factory=dict[str, tuple[str, str]]
    )

    def __post_init__(self) -> None:
        self._spaces = {mesh.name: mesh for mesh in self.stages}
        self.type = self.types.type
        """Returns the type of one micro-batch of a value on a stage's mesh."""
        self.whole_type = self.types.whole
        """
        Returns the type of all micro-batches of a value together on a stage's mesh.
        """
        self.moved_type = self.types.moved
        """Returns a folded type on another stage's mesh with the same axes."""

    def space(self, mesh: str) -> Mesh:
        """Returns the stage mesh with the name `mesh`."""
        return self._spaces[mesh]

    def op(
        self,
        op: Operation,
        operands: Sequence[SSAValue],
        mesh: str,
        number: SSAValue | None,
    ) -> list[Operation]:
        """
        Returns new ops that do the work of `op` for one micro-batch. `operands` are
        values for one micro-batch. The results of the last op replace the results of
        `op`. `number` is the index of the micro-batch, an i64 scalar. If it is None, an
        op that needs it raises `NeedsNumber`.
        """
        results = [self.type(r.type, mesh) for r in op.results]
        if isinstance(op, CallOp):
            name, numbered = self.function(op.callee.string_value(), mesh)
            if numbered and number is None:
                raise NeedsNumber
            extra = [number] if numbered and number is not None else []
            return [called(op, name, [*operands, *extra], results)]
        if isinstance(op, ReshardOp) and self._divides(op):
            if number is None:
                raise NeedsNumber
            placement, count = split_over_time(op.result), self.mesh.size(TIME_AXIS)
            space = self.space(mesh)
            return part_ops(operands[0], results[0], placement, count, number, space)
        if self._is_whole(op) or isinstance(op, ReshardOp):
            return [made_with(op, operands, results)]
        return self._local(op, operands, results, mesh, number)

    def stays(self, op: Operation) -> bool:
        """
        Whether a copy of `op`, which must not be a call, does the work of `op` for one
        micro-batch. Only the types of its values change.
        """
        if isinstance(op, ReshardOp):
            return over_time(op.source) == over_time(op.result)
        return self._is_whole(op) or not self.has_local_form(op)

    def has_local_form(self, op: Operation) -> bool:
        """
        Whether the work of `op` on one micro-batch is done by different ops, the local
        form of `op`.
        """
        return local_form.of(op) is not None

    def _is_whole(self, op: Operation) -> bool:
        """
        Whether none of the operands and results of `op` is split into micro-batches.
        """
        values = (*op.operands, *op.results)
        return all(not isinstance(over_time(v), SplitPlacement) for v in values)

    def _local(
        self,
        op: Operation,
        operands: Sequence[SSAValue],
        results: Sequence[Attribute],
        mesh: str,
        number: SSAValue | None,
    ) -> list[Operation]:
        """
        Returns the ops that do the work of `op` for one micro-batch (its local form
        along the micro-batch axis), with layouts on the mesh of the stage. Raises
        `NeedsNumber` if the ops need the index of the micro-batch and `number` is None.
        """
        new: list[Operation] = []
        values: dict[SSAValue, SSAValue] = {}
        parts = local_ops_along(
            op, operands, results, self.mesh, TIME_AXIS, self.rule_of
        )
        for part in parts:
            if isinstance(part, CoordinateOp):
                if number is None:
                    raise NeedsNumber
                values[part.result] = number
                continue
            given = [values.get(v, v) for v in part.operands]
            rule = self.rule_of_part(part)
            if part is parts[-1] and rule.is_made_anywhere:
                types = results  # such an op has the layout of its user
            else:
                types = self._inferred(part, rule, given, mesh)
            made = part
            if given != [*part.operands] or types != [r.type for r in part.results]:
                made = made_with(part, given, types)
            new.append(made)
            values.update(zip(part.results, made.results, strict=True))
        for value, expected in zip(new[-1].results, results, strict=True):
            if value.type != expected:
                raise DistIRError(
                    f"pipeline: {describe(op)} gives {expected} for one micro-batch, but "
                    f"its local form gives {value.type}"
                )
        return new

    def _inferred(
        self, op: Operation, rule: Rule, operands: Sequence[SSAValue], mesh: str
    ) -> list[Attribute]:
        """
        Returns the result types of an op in a local form. Their layouts are inferred
        from the layouts of `operands` by the sharding rule `rule`.
        """
        whole = Layout(mesh)
        layouts = [layout_of(v) or whole for v in operands]
        found = infer(rule, layouts, self._spaces[mesh]).results
        return [
            with_layout(r.type, layout) if isinstance(r.type, TensorType) else r.type
            for r, layout in zip(op.results, found, strict=True)
        ]

    def function(self, name: str, mesh: str) -> tuple[str, bool]:
        """
        Returns the name of the function `name` folded for a mesh, and whether the
        folded function takes the index of the micro-batch. Makes the folded function if
        it does not exist yet.
        """
        key = (name, mesh)
        if key not in self._known:
            alike = name, self.space(mesh).axes
            elsewhere = self._first.get(alike)
            if elsewhere is not None:
                function, numbered = elsewhere
                self._known[key] = (self._moved(name, function, mesh), numbered)
                return self._known[key]
            try:
                function, numbered = self._function(name, mesh, numbered=False), False
            except NeedsNumber:
                function, numbered = self._function(name, mesh, numbered=True), True
            self._first[alike] = (function, numbered)
            self._known[key] = (function.sym_name.data, numbered)
        return self._known[key]

    def origin(self, name: str) -> str:
        """
        Returns the name that the folded function `name` had in the original program.
        """
        return self._origin[name][0]

    def mesh_of(self, name: str) -> str:
        """Returns the name of the mesh for which the function `name` was folded."""
        return self._origin[name][1]

    def _moved(self, name: str, source: FuncOp, mesh: str) -> str:
        """
        Copies a folded function to another mesh with the same axes and returns the
        copy's name. This is faster than folding again.
        """
        old_arguments = source.body.block.args
        block = Block(arg_types=[self.moved_type(a.type, mesh) for a in old_arguments])
        values = _renamed(old_arguments, block.args)
        for op in source.body.block.ops:
            made = made_with(
                op,
                [values[v] for v in op.operands],
                [self.moved_type(r.type, mesh) for r in op.results],
            )
            if isinstance(made, CallOp):
                callee = self.origin(made.callee.string_value())
                made.properties["callee"] = SymbolRefAttr(
                    self.function(callee, mesh)[0]
                )
            block.add_op(made)
            for old, new in zip(op.results, made.results, strict=True):
                new.name_hint = old.name_hint
                values[old] = new
        function = self._finish(name, block, mesh)
        function.arg_attrs = source.arg_attrs
        function.res_attrs = source.res_attrs
        if COMPILED in source.attributes:
            function.attributes[COMPILED] = source.attributes[COMPILED]
        return function.sym_name.data

    def _function(self, name: str, mesh: str, *, numbered: bool) -> FuncOp:
        source = self.functions[name]
        old_arguments = source.body.block.args
        block = Block(arg_types=[self.type(a.type, mesh) for a in old_arguments])
        values = _renamed(old_arguments, block.args)
        number = self.number_argument(block, mesh) if numbered else None
        for op in source.body.block.ops:
            operands = [values[v] for v in op.operands]
            if isinstance(op, ReturnOp):
                block.add_op(ReturnOp(*operands))
                break
            made = self.op(op, operands, mesh, number)
            block.add_ops(made)
            for old, new in zip(op.results, made[-1].results, strict=True):
                new.name_hint = old.name_hint
                values[old] = new
        function = self._finish(name, block, mesh)
        if not numbered and source.arg_attrs is not None:
            function.arg_attrs = source.arg_attrs
        function.res_attrs = source.res_attrs
        if COMPILED in source.attributes:
            function.attributes[COMPILED] = source.attributes[COMPILED]
        return function

    def _divides(self, op: ReshardOp) -> bool:
        """
        Whether a reshard takes a micro-batch's part of a whole value. Raises
        DistIRError for a reshard that combines micro-batches, which an op for one
        micro-batch cannot do.
        """
        before, after = over_time(op.source), over_time(op.result)
        if self.mesh.size(TIME_AXIS) == 1 or before == after:
            return False
        if before is REPLICATED and isinstance(after, SplitPlacement):
            return True
        owner = op.source.owner
        if not isinstance(owner, Operation) or isinstance(owner, ReshardOp):
            owner = next((use.operation for use in op.result.uses), op)
        user = next((use.operation for use in op.result.uses), op)
        if isinstance(user, QuantizeBlocksOp):
            raise DistIRError(
                f"pipeline: {describe(user)} divides its rows into blocks of {user.size} rows "
                f"for {user.recipe.data}, but a device's part of a micro-batch has no whole "
                f"blocks; use fewer micro-batches (-k), or larger batches"
            )
        raise DistIRError(
            f"pipeline: {describe(owner)} makes something of the whole batch, but the function "
            f"that it is in works on micro-batches; {whole_batch_remedy(owner)}"
        )

    def _finish(self, name: str, block: Block, mesh: str) -> FuncOp:
        """
        Makes a function with the body `block`, adds the function to `made` and returns
        it.
        """
        last = block.last_op
        assert last is not None
        plain = f"{name}_{mesh}" if len(self.stages) > 1 else name
        function = FuncOp(
            self.free_name(plain),
            FunctionType.from_lists(
                [a.type for a in block.args], [v.type for v in last.operands]
            ),
            Region(block),
            StringAttr("private"),
        )
        self._origin[function.sym_name.data] = name, mesh
        self.add(function)
        return function

    def add(self, function: FuncOp) -> None:
        """Adds a function to `made`, after removing its unused ops."""
        # Local forms no longer use the constants of the global ops.
        erase_dead(function.body.block)
        self.made[function.sym_name.data] = function

    def free_name(self, name: str) -> str:
        """
        Returns `name` if no function has this name, else a similar name that no
        function has.
        """
        return free_name({self.entry, *self.made}, name)

    def number_argument(self, block: Block, mesh: str) -> SSAValue:
        """
        Adds an argument for the index of the micro-batch to a block, and returns it.
        """
        arg = block.insert_arg(number_type(mesh), len(block.args))
        arg.name_hint = NUMBER
        return arg


def _renamed(
    old: Sequence[SSAValue], new: Sequence[SSAValue]
) -> dict[SSAValue, SSAValue]:
    """Returns a map from `old` to `new` values, which get the same name hints."""
    for before, after in zip(old, new, strict=True):
        after.name_hint = before.name_hint
    return dict(zip(old, new, strict=True))


class NeedsNumber(Exception):
    """
    Raised if an op depends on the index of its micro-batch and the caller does not give
    the index.
    """


def number_type(mesh: str) -> TensorType[Attribute]:
    """Returns the type of the index of a micro-batch on the mesh `mesh`."""
    return TensorType(i64, [], LayoutAttr(Layout(mesh)))
