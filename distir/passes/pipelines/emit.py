"""The program that runs stages in the order of a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from xdsl.dialects.builtin import FunctionType, TensorType, UnitAttr
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import (
    ASYNCHRONOUS,
    Layout,
    LayoutAttr,
    ReshardOp,
    SendOp,
    layout_of,
    with_layout,
)
from distir.dialects.onnx import operator
from distir.dialects.onnx_values import constant_attr, element_type_of_dtype
from distir.errors import DistIRError
from distir.passes.pipelines.fold import Fold, number_type
from distir.passes.pipelines.functions import FunctionBuilder, Group, StageFunction
from distir.passes.pipelines.structure import Kind, Structure, over_time
from distir.pipelining import Action, Phase, Schedule, global_order
from distir.program import unique_name
from distir.sharding.mesh import Mesh

Groups = Mapping[tuple[int, Phase], Group]


class Emitter:
    """
    Builds the new entry function.

    - `structure`, `fold`: the program, and what becomes of it for one micro-batch;
    - `groups`: by stage and phase; `stages`: of each op of kind `EACH`;
    - `meshes`: of each stage;
    - `asynchronous`: whether sends leave the devices free to compute meanwhile.
    """

    def __init__(
        self,
        structure: Structure,
        fold: Fold,
        groups: Groups,
        stages: Mapping[Operation, int],
        meshes: Sequence[Mesh],
        *,
        asynchronous: bool,
    ):
        self.structure = structure
        self.fold = fold
        self.groups = groups
        self.stages = dict(stages)
        self.meshes = meshes
        self.asynchronous = asynchronous
        self.block = Block()
        self._functions: dict[tuple[Group, tuple[SSAValue, ...]], StageFunction] = {}
        # Where the values of the new program are, by value of the old one (and number of
        # the micro-batch, None for all of them together) and mesh.
        self._here: dict[tuple[SSAValue, int | None, str], SSAValue] = {}
        self._home: dict[tuple[SSAValue, int | None], str] = {}
        self._sums: dict[SSAValue, SSAValue] = {}
        self._numbers: dict[tuple[int, str], SSAValue] = {}
        self._owners: dict[SSAValue, int] = {}
        # Types of sent values by the id of the type before, which is kept for that.
        self._sent: dict[tuple[int, str], tuple[Attribute, Attribute]] = {}
        self._consumers = self._find_consumers()

    def run(self, schedule: Schedule) -> FuncOp:
        """The entry function that follows the schedule."""
        order = [a for a in global_order(schedule) if (a.stage, a.phase) in self.groups]
        self._place_arguments()
        for action in order:
            self._action(action)
        for op in self.structure.ops:
            if self.structure.kinds.get(op) is Kind.AFTER:
                self._after(op)
        return self._function()

    # Where things are

    def _mesh(self, stage: int) -> str:
        return self.meshes[stage].name

    def _find_consumers(self) -> dict[SSAValue, list[str]]:
        """The meshes on which stages need a value that another one passes on."""
        found: dict[SSAValue, list[str]] = {}
        for group in self.groups.values():
            for op in group.ops:
                for value in op.operands:
                    meshes = found.setdefault(value, [])
                    if self._mesh(group.stage) not in meshes:
                        meshes.append(self._mesh(group.stage))
        return found

    def _place_arguments(self) -> None:
        """
        An argument lives on the first stage that uses it; one that only the ops after the
        micro-batches use lives where the first of them runs.
        """
        forward = set(self.structure.forward)
        for arg in self.structure.function.body.block.args:
            users = _users(arg, self.structure)
            first = [op for op in users if op in forward] or users
            if first:
                self._owners[arg] = min(self.stages[op] for op in first)
        for op in self.structure.ops:
            if self.structure.kinds.get(op) is Kind.AFTER:
                self._place_after(op)
        for arg in self.structure.function.body.block.args:
            mesh = self._mesh(self._owners.setdefault(arg, 0))
            new = self.block.insert_arg(
                self.fold.whole_type(arg.type, mesh), len(self.block.args)
            )
            new.name_hint = arg.name_hint
            self._store(arg, None, mesh, new)

    def _place_after(self, op: Operation) -> None:
        """
        An op after the micro-batches runs where the argument is that it updates, or
        else on the first stage that has an operand.
        """
        known: list[int] = []
        unknown: list[SSAValue] = []
        for value in op.operands:
            owner = value.owner
            if isinstance(owner, Operation):
                if owner in self.stages:
                    known.append(self.stages[owner])
            elif value in self._owners:
                known.append(self._owners[value])
                if not unknown and value is op.operands[0]:
                    known = [self._owners[value]]
                    break
            else:
                unknown.append(value)
        stage = min(known, default=0)
        self.stages[op] = stage
        for value in op.operands:
            if isinstance(value, BlockArgument):
                self._owners.setdefault(value, stage)

    def _store(
        self, value: SSAValue, batch: int | None, mesh: str, new: SSAValue
    ) -> None:
        self._here[value, batch, mesh] = new
        self._home.setdefault((value, batch), mesh)

    def _value(self, value: SSAValue, batch: int | None, mesh: str) -> SSAValue:
        """A value on a mesh; it is sent there once, computed there if nothing else is."""
        key = (value, batch, mesh)
        if key in self._here:
            return self._here[key]
        owner = value.owner
        kind = self.structure.kinds[owner] if isinstance(owner, Operation) else None
        time = over_time(value).kind
        if batch is not None and time == "whole":
            new = self._value(value, None, mesh)
        elif kind is Kind.BEFORE and isinstance(owner, Operation):
            new = self._compute(owner, mesh)[value]
        elif (value, batch) in self._home:
            new = self._send(self._here[value, batch, self._home[value, batch]], mesh)
        elif batch is not None:
            self._divide(value, mesh)
            return self._here[key]
        elif time == "split":
            new = self._join(value, mesh)
        else:
            new = self._send(self._sums[value], mesh)
        self._store(value, batch, mesh, new)
        return new

    def _add(self, op: Operation) -> SSAValue:
        self.block.add_op(op)
        return op.results[0]

    def _send(self, value: SSAValue, mesh: str) -> SSAValue:
        layout = layout_of(value)
        assert layout is not None and isinstance(value.type, TensorType)
        if layout.mesh == mesh:
            return value
        key = (id(value.type), mesh)
        if key not in self._sent:
            moved = with_layout(value.type, replace(layout, mesh=mesh))
            self._sent[key] = (value.type, moved)
        target = self._sent[key][1]
        send = SendOp(value, target)
        if self.asynchronous:
            send.attributes[ASYNCHRONOUS] = UnitAttr()
        send.result.name_hint = value.name_hint
        return self._add(send)

    def _compute(self, op: Operation, mesh: str) -> dict[SSAValue, SSAValue]:
        """Computes an op that depends on no micro-batch on a mesh."""
        operands = [self._value(v, None, mesh) for v in op.operands]
        made = self.fold.op(op, operands, mesh, None)
        self.block.add_ops(made)
        results = dict(zip(op.results, made[-1].results, strict=True))
        for old, new in results.items():
            new.name_hint = old.name_hint
            self._store(old, None, mesh, new)
        return results

    # Micro-batches

    def _divide(self, value: SSAValue, mesh: str) -> None:
        """Cuts an argument (or a whole value) into the parts of the micro-batches."""
        owner = value.owner
        part = self.fold.type(value.type, mesh)
        if isinstance(owner, Operation):
            # kind DIVIDE: bring the whole value to the layout that falls into parts.
            source = self._value(owner.operands[0], None, mesh)
            wanted = self.fold.whole_type(value.type, mesh)
            home = mesh
            if source.type != wanted:
                source = self._add(ReshardOp(source, wanted))
        else:
            home = self._home[value, None]
            source = self._here[value, None, home]
        part = self.fold.type(value.type, home)
        count, axis = self.structure.micro_batches, over_time(value).dim
        parts: Sequence[SSAValue] = [source]
        if count > 1:
            assert isinstance(part, TensorType)
            sizes = np.full(count, part.get_shape()[axis], dtype=np.int64)
            split = operator("Split").build_op(
                [source, self._constant(sizes, home)], [part] * count, {"axis": axis}
            )
            self.block.add_op(split)
            parts = split.results
        for number, new in enumerate(parts):
            new.name_hint = value.name_hint
            self._store(value, number, home, new)
        if home != mesh:
            for number in range(count):
                self._value(value, number, mesh)

    def _join(self, value: SSAValue, mesh: str) -> SSAValue:
        """Joins the parts of all micro-batches, on the stage that has them."""
        count, axis = self.structure.micro_batches, over_time(value).dim
        home = self._home[value, 0]
        parts = [self._here[value, n, home] for n in range(count)]
        if count == 1:
            joined = parts[0]
        else:
            first = parts[0].type
            assert isinstance(first, TensorType) and isinstance(value.type, TensorType)
            join = operator("Concat").build_op(
                parts, [self.fold.whole_type(value.type, home)], {"axis": axis}
            )
            self.block.add_op(join)
            joined = join.results[0]
            joined.name_hint = value.name_hint
        self._store(value, None, home, joined)
        return self._send(joined, mesh)

    def _constant(self, array: np.ndarray, mesh: str) -> SSAValue:  # type: ignore[type-arg]
        type_ = TensorType(
            element_type_of_dtype(array.dtype), array.shape, LayoutAttr(Layout(mesh))
        )
        return self._add(
            operator("Constant").build_op([], [type_], {"value": constant_attr(array)})
        )

    def _number(self, number: int, mesh: str) -> SSAValue:
        if (number, mesh) not in self._numbers:
            value = self._constant(np.array(number, dtype=np.int64), mesh)
            assert value.type == number_type(mesh)
            self._numbers[number, mesh] = value
        return self._numbers[number, mesh]

    def _action(self, action: Action) -> None:
        """Calls the function of a stage and phase for one micro-batch."""
        group = self.groups[action.stage, action.phase]
        mesh, number = self._mesh(action.stage), action.micro_batch
        added = tuple(v for v in group.accumulated if v in self._sums)
        function = self._stage_function(group, added)
        operands = [self._value(v, number, mesh) for v in function.inputs]
        operands += [self._sums[v] for v in added]
        if function.numbered:
            operands.append(self._number(number, mesh))
        types = [self.fold.type(v.type, mesh) for v in group.results]
        call = CallOp(function.name, operands, types)
        self.block.add_op(call)
        for old, new in zip(group.results, call.results, strict=True):
            new.name_hint = old.name_hint
            if old in group.accumulated:
                self._sums[old] = new
            if old in group.passed or old in group.collected:
                self._store(old, number, mesh, new)
        if self.asynchronous:
            for value in group.passed:
                for other in self._consumers[value]:
                    self._value(value, number, other)

    def _stage_function(
        self, group: Group, added: tuple[SSAValue, ...]
    ) -> StageFunction:
        key = (group, added)
        if key not in self._functions:
            name = group.name if not added else f"{group.name}_accumulate"
            name = unique_name(self.fold.module, name)
            builder = FunctionBuilder(
                self.structure, self.fold, group, self._mesh(group.stage), added
            )
            function, self._functions[key] = builder.build(name)
            Rewriter.insert_op(function, InsertPoint.before(self.structure.function))
        return self._functions[key]

    # After the micro-batches

    def _after(self, op: Operation) -> None:
        mesh = self._mesh(self.stages[op])
        if isinstance(op, ReshardOp) and over_time(op.source).kind != "whole":
            # All micro-batches are together already.
            target = self.fold.whole_type(op.result.type, mesh)
            source = self._value(op.source, None, mesh)
            new = (
                source
                if source.type == target
                else self._add(ReshardOp(source, target))
            )
            self._store(op.result, None, mesh, new)
            return
        operands = [self._value(v, None, mesh) for v in op.operands]
        made = type(op).create(
            operands=operands,
            result_types=[self.fold.whole_type(r.type, mesh) for r in op.results],
            properties=op.properties.copy(),
            attributes=op.attributes.copy(),
        )
        if isinstance(op, CallOp):
            name, _ = self.fold.function(op.callee.string_value(), mesh)
            made = CallOp(name, operands, list(made.result_types))
            made.attributes.update(op.attributes)
        self.block.add_op(made)
        for old, new in zip(op.results, made.results, strict=True):
            new.name_hint = old.name_hint
            self._store(old, None, mesh, new)

    def _function(self) -> FuncOp:
        old = self.structure.function
        last = old.body.block.last_op
        assert isinstance(last, ReturnOp)
        results: list[SSAValue] = []
        for value in last.operands:
            results.append(self._result(value))
        self.block.add_op(ReturnOp(*results))
        function = FuncOp(
            old.sym_name.data,
            FunctionType.from_lists(
                [a.type for a in self.block.args], [v.type for v in results]
            ),
            Region(self.block),
            old.sym_visibility,
        )
        function.arg_attrs, function.res_attrs = old.arg_attrs, old.res_attrs
        attributes: dict[str, Attribute] = dict(old.attributes)
        function.attributes.update(attributes)
        return function

    def _result(self, value: SSAValue) -> SSAValue:
        if over_time(value).kind == "partial":
            raise DistIRError("pipeline: a result leaves the program partial over time")
        home = self._home.get((value, None)) or self._home.get((value, 0))
        if home is None:
            home = self._mesh(0)
        return self._value(value, None, home)


def _users(value: SSAValue, structure: Structure) -> list[Operation]:
    """The ops of kind `EACH` that a value reaches through ops that come before them."""
    found: list[Operation] = []
    for use in value.uses:
        kind = structure.kinds.get(use.operation)
        if kind is Kind.EACH:
            found.append(use.operation)
        elif kind in (Kind.BEFORE, Kind.DIVIDE):
            for result in use.operation.results:
                found += _users(result, structure)
    return found
