"""Pass `project`: the program that one device runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FunctionType,
    IntegerAttr,
    ModuleOp,
    SymbolRefAttr,
    TensorType,
    i64,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from distir.dialects import collective, dist
from distir.dialects.dist import LAYOUT, SCOPE, Layout, LayoutAttr, layout_of
from distir.dialects.onnx import operator
from distir.dialects.onnx_values import constant_attr, numpy_dtype
from distir.errors import DistIRError
from distir.passes.options import DistIRPass
from distir.program import (
    ENTRY,
    argument_attributes,
    describe,
    functions,
    result_attributes,
)
from distir.sharding.layout import joint_run, local_type
from distir.sharding.local import local_ops, mesh_of_op
from distir.sharding.mesh import Mesh, meshes

MESH = "mesh"
"""Attribute of per-rank collectives: the symbol of the mesh that `axes` belong to."""


_TRANSFERS = (
    collective.SendToRankOp,
    collective.RecvFromRankOp,
    collective.RootedOp,
    collective.PermuteOp,
)


def devices_of(module: ModuleOp) -> tuple[int, ...]:
    """
    The devices that a program runs on, ascending: those of every mesh that a value
    lives on, or device 0 alone for a sequential program.
    """
    known = meshes(module)
    used = {
        layout.mesh
        for function in functions(module).values()
        for type_ in _types_in(function)
        if (layout := layout_of(type_)) is not None
    }
    missing = used - known.keys()
    if missing:
        raise DistIRError(f"there is no device.mesh @{min(missing)} in the module")
    return tuple(sorted({d for name in used for d in known[name].devices})) or (0,)


def _types_in(function: FuncOp) -> Iterable[Attribute]:
    yield from function.function_type.inputs
    yield from function.function_type.outputs
    for op in function.body.block.ops:
        yield from op.result_types


@dataclass
class _Projection:
    """One device's program, function by function."""

    module: ModuleOp
    rank: int
    mesh_of: Mapping[str, Mesh] = field(init=False)
    projected: dict[str, FuncOp | None] = field(
        default_factory=lambda: dict[str, FuncOp | None]()
    )
    arriving: dict[str, frozenset[int]] = field(
        default_factory=lambda: dict[str, frozenset[int]]()
    )
    """Per function the results of the projection that it returns before they are there."""
    _transferring: dict[str, bool] = field(default_factory=lambda: dict[str, bool]())

    def __post_init__(self) -> None:
        self.mesh_of = meshes(self.module)

    def lives_here(self, type_: Attribute) -> bool:
        """Whether this device holds (a part of) values of that type."""
        layout = layout_of(type_)
        if layout is None:
            return True
        if layout.mesh not in self.mesh_of:
            raise DistIRError(f"there is no device.mesh @{layout.mesh} in the module")
        return self.rank in self.mesh_of[layout.mesh].devices

    def local(self, type_: Attribute) -> Attribute:
        return local_type(type_, self.mesh_of)

    def transfers(self, op: Operation) -> bool:
        """Whether an op of the projection moves tensors between two devices."""
        if not isinstance(op, CallOp):
            return isinstance(op, _TRANSFERS)
        name = op.callee.string_value()
        if name not in self._transferring:
            called = self.function(name)
            self._transferring[name] = called is not None and any(
                map(self.transfers, called.body.block.ops)
            )
        return self._transferring[name]

    def function(self, name: str) -> FuncOp | None:
        """
        The projection of a function: only the arguments, ops and results that live on
        this device. None when nothing is left. Calls are projected on demand.
        """
        if name not in self.projected:
            found = functions(self.module).get(name)
            if found is None:
                raise DistIRError(
                    f"func.call names @{name}, which is not in the module"
                )
            self.projected[name] = None  # a recursive call finds nothing to do
            self.projected[name] = _FunctionProjection(self, found).result()
        return self.projected[name]


@dataclass
class _FunctionProjection:
    """
    The projection of one function. `values` maps global values to local ones, `arriving`
    holds those among them that are on their way and that nothing has waited for yet.
    """

    program: _Projection
    source: FuncOp
    block: Block = field(default_factory=Block)
    values: dict[SSAValue, SSAValue] = field(
        default_factory=lambda: dict[SSAValue, SSAValue]()
    )
    arriving: dict[SSAValue, None] = field(
        default_factory=lambda: dict[SSAValue, None]()
    )

    def result(self) -> FuncOp | None:
        program, source = self.program, self.source
        arguments = [
            (argument, attributes)
            for argument, attributes in zip(
                source.body.block.args, argument_attributes(source), strict=True
            )
            if program.lives_here(argument.type)
        ]
        for argument, _ in arguments:
            new = self.block.insert_arg(
                program.local(argument.type), len(self.block.args)
            )
            new.name_hint = argument.name_hint
            self.values[argument] = new
        for op in source.body.block.ops:
            self._project(op)
        last = self.block.last_op
        if not isinstance(last, ReturnOp):
            raise DistIRError(
                f"function @{source.sym_name.data} does not end in func.return"
            )
        empty = len(list(self.block.ops)) == 1 and not last.operands
        if empty and source.sym_name.data != ENTRY:
            return None
        function = FuncOp(
            source.sym_name.data,
            FunctionType.from_lists(
                [a.type for a in self.block.args], [v.type for v in last.operands]
            ),
            Region(self.block),
            source.sym_visibility,
        )
        function.arg_attrs = _dictionaries(
            _with_layout(attributes, argument.type)
            for argument, attributes in arguments
        )
        function.res_attrs = _dictionaries(
            _with_layout(attributes, type_)
            for attributes, type_ in zip(
                result_attributes(source), source.function_type.outputs, strict=True
            )
            if program.lives_here(type_)
        )
        for key, value in source.attributes.items():
            function.attributes[key] = value
        return function

    def _project(self, op: Operation) -> None:
        """Appends what this device does for `op`."""
        if collective.is_per_rank(op):
            raise DistIRError(
                f"{describe(op)} belongs to the program of one rank already; project the "
                f"distributed program"
            )
        if isinstance(op, ReturnOp):
            self._wait(self._awaited_at_end(op))
        else:
            self._wait(op.operands)
        match op:
            case ReturnOp():
                self.block.add_op(
                    ReturnOp(*(self.values[v] for v in op.operands if self._here(v)))
                )
            case CallOp():
                self._call(op)
            case dist.SendOp():
                self._send(op)
            case dist.ReshardOp() | dist.ConstrainOp():
                raise DistIRError(
                    f"{describe(op)} is still in the program; run `partition` and "
                    f"`lower-reshard` before `project`"
                )
            case collective.RootedOp():
                self._rooted(op)
            case collective.CollectiveOp():
                self._collective(op)
            case _:
                self._compute(op)

    def _awaited_at_end(self, end: ReturnOp) -> list[SSAValue]:
        """
        What the function waits for when it ends: all that is on its way, but for results
        that it may return as they are. Those are results of collectives; the program as a
        whole returns what is there.
        """
        name = self.source.sym_name.data
        pending = {
            v
            for v in end.operands
            if v in self.arriving
            and name != ENTRY
            and not isinstance(v.owner, dist.SendOp)
        }
        here = [v for v in end.operands if self._here(v)]
        self.program.arriving[name] = frozenset(
            i for i, v in enumerate(here) if v in pending
        )
        return [v for v in self.arriving if v not in pending]

    def _wait(self, values: Iterable[SSAValue]) -> None:
        """Waits for those of the values that are still on their way."""
        for value in list(values):
            if value in self.arriving:
                del self.arriving[value]
                wait = collective.WaitOp(self.values[value])
                wait.result.name_hint = value.name_hint or "received"
                self.block.add_op(wait)
                self.values[value] = wait.result

    def _here(self, value: SSAValue) -> bool:
        return self.program.lives_here(value.type)

    def _operands(self, op: Operation) -> list[SSAValue]:
        for index, value in enumerate(op.operands):
            if value not in self.values:
                raise DistIRError(
                    f"{describe(op)}: operand {index} has type {value.type} and is not "
                    f"on device {self.program.rank}, where the op runs; send it there "
                    f"first"
                )
        return [self.values[v] for v in op.operands]

    def _append(
        self, op: Operation, ops: Sequence[Operation], mesh: Mesh | None
    ) -> None:
        """Adds `ops`, the last of which computes the results of `op`."""
        for new in ops:
            if SCOPE in op.attributes and SCOPE not in new.attributes:
                new.attributes[SCOPE] = op.attributes[SCOPE]
            if mesh is not None and isinstance(
                new, collective.CollectiveOp | collective.CoordinateOp
            ):
                new.attributes[MESH] = SymbolRefAttr(mesh.name)
            self.block.add_op(new)
        for old, new in zip(op.results, ops[-1].results, strict=True):
            new.name_hint = old.name_hint
            self.values[old] = new

    def _compute(self, op: Operation) -> None:
        program = self.program
        mesh = mesh_of_op(op, program.mesh_of)
        if mesh is not None and program.rank not in mesh.devices:
            return
        coordinates = {} if mesh is None else mesh.coordinates_of(program.rank)
        ops = local_ops(op, self._operands(op), program.mesh_of, coordinates)
        self._append(op, ops, mesh)

    def _call(self, op: CallOp) -> None:
        callee = self.program.function(op.callee.string_value())
        if callee is None:
            return
        results = [r for r in op.results if self._here(r)]
        call = CallOp(
            op.callee,
            [self.values[v] for v in op.operands if self._here(v)],
            [self.program.local(r.type) for r in results],
        )
        call.attributes.update(op.attributes)
        self.block.add_op(call)
        arriving = self.program.arriving[op.callee.string_value()]
        for i, (old, new) in enumerate(zip(results, call.results, strict=True)):
            new.name_hint = old.name_hint
            self.values[old] = new
            if i in arriving:
                self.arriving[old] = None

    def _send(self, op: dist.SendOp) -> None:
        """
        Pairs of devices at the same coordinates take their turn in mesh order, which
        keeps a device that both sends and receives from waiting for itself.
        """
        rank = self.program.rank
        source, target = _layouts(op)
        pairs = list(
            zip(
                self.program.mesh_of[source.mesh].devices,
                self.program.mesh_of[target.mesh].devices,
                strict=True,
            )
        )
        for sender, receiver in pairs:
            if sender == receiver == rank:
                self.values[op.result] = self.values[op.source]
            elif sender == rank:
                send = collective.SendToRankOp(self._operands(op)[0], receiver)
                send.attributes.update(op.attributes)
                self.block.add_op(send)
            elif receiver == rank:
                recv = collective.RecvFromRankOp(
                    self.program.local(op.result.type), sender
                )
                recv.attributes.update(op.attributes)
                self._append(op, [recv], None)
                if recv.is_asynchronous:
                    self._start_early(recv)
                    recv.result.name_hint = "arriving"
                    self.arriving[op.result] = None

    def _start_early(self, recv: collective.RecvFromRankOp) -> None:
        """
        Moves the last op of the block up to the last transfer before it, so that the
        device computes while the value is on its way. Transfers keep their order.
        """
        last = recv.prev_op
        while last is not None and not self.program.transfers(last):
            last = last.prev_op
        recv.detach()
        if last is not None:
            self.block.insert_op_after(recv, last)
        elif self.block.first_op is not None:
            self.block.insert_op_before(recv, self.block.first_op)
        else:
            self.block.add_op(recv)

    def _collective(self, op: collective.CollectiveOp) -> None:
        before, _ = _layouts(op)
        mesh = self.program.mesh_of[before.mesh]
        if self.program.rank not in mesh.devices:
            return
        new = self._per_rank(op, mesh, self._operands(op)[0])
        if isinstance(op, collective.PermuteOp) and op.shift is not None:
            new.properties["shift"] = op.shift
        self._append(op, [new], mesh)
        if op.is_asynchronous:
            self.arriving[op.result] = None

    def _per_rank(
        self, op: collective.CollectiveOp, mesh: Mesh, source: SSAValue
    ) -> collective.CollectiveOp:
        """The collective with its group and everything the local types do not show."""
        before, after = _layouts(op)
        source_type = op.source.type
        assert isinstance(source_type, TensorType)
        rank = source_type.get_num_dims()
        joined: int | None = None
        split: int | None = None
        for i in range(rank):
            if len(before.dim(i)) > len(after.dim(i)):
                joined = i
            elif len(before.dim(i)) < len(after.dim(i)):
                split = i
        dim, run = self._dim_and_run(op, before, joined)
        split_dim, split_run = self._dim_and_run(op, after, split)
        if joined is None:
            dim, run, split_dim, split_run = split_dim, split_run, None, None
        monoids = dict(before.partial)
        reduced = [monoids[a] for a in op.axis_names if a in monoids]
        reduces = isinstance(
            op,
            collective.AllReduceOp | collective.ReduceScatterOp | collective.ReduceOp,
        )
        new = type(op)(
            source,
            op.axis_names,
            self.program.local(op.result.type),
            group=mesh.group(self.program.rank, op.axis_names),
            reduction=reduced[0] if reduces else None,
            dim=dim,
            run=run,
            split_dim=split_dim,
            split_run=split_run,
        )
        new.attributes.update(op.attributes)
        return new

    def _dim_and_run(
        self, op: collective.CollectiveOp, layout: Layout, dim: int | None
    ) -> tuple[int | None, int | None]:
        """The dimension and, for its innermost axes (those of the op), the run length."""
        if dim is None:
            return None, None
        count = len(op.axis_names)
        mesh = self.program.mesh_of[layout.mesh]
        shards = layout.dim(dim)
        outer = prod(mesh.size(s.axis) for s in shards[:-count])
        assert isinstance(op.source.type, TensorType)
        size = op.source.type.get_shape()[dim] // outer
        try:
            return dim, joint_run(size, shards[-count:], mesh)
        except ValueError as error:
            raise DistIRError(
                f"{describe(op)}: dimension {dim} of {layout} is split over "
                f"{', '.join(op.axis_names)} with run lengths that do not nest, which "
                f"one collective cannot do; use one collective per axis"
            ) from error

    def _rooted(self, op: collective.RootedOp) -> None:
        """
        The root's side is a mesh of one device. Devices that have no operand pass a
        placeholder; devices that get no result ignore it.
        """
        rank = self.program.rank
        before, after = _layouts(op)
        from_root = isinstance(op, collective.BroadcastOp | collective.ScatterOp)
        one, many = (before, after) if from_root else (after, before)
        mesh = self.program.mesh_of[many.mesh]
        if not mesh.has_root(self.program.mesh_of[one.mesh], op.axis_names):
            raise DistIRError(
                f"{describe(op)} cannot have its root on @{one.mesh}; run "
                f"verify-distribution"
            )
        (root,) = self.program.mesh_of[one.mesh].devices
        if rank not in mesh.devices:
            return
        if op.source in self.values:
            source = self.values[op.source]
        else:
            type_ = self.program.local(op.source.type)
            assert isinstance(type_, TensorType)
            zeros = np.zeros(type_.get_shape(), numpy_dtype(type_.element_type))
            placeholder = operator("Constant").build_op(
                [], [type_], {"value": constant_attr(zeros)}
            )
            self.block.add_op(placeholder)
            source = placeholder.results[0]
        new = self._per_rank(op, mesh, source)
        new.properties["root"] = IntegerAttr(root, i64)
        self._append(op, [new], mesh)


def _layouts(op: Operation) -> tuple[Layout, Layout]:
    before, after = layout_of(op.operands[0]), layout_of(op.results[0])
    if before is None or after is None:
        raise DistIRError(f"{describe(op)} needs a #dist.layout on both sides")
    return before, after


def _with_layout(
    attributes: dict[str, Attribute], type_: Attribute
) -> dict[str, Attribute]:
    layout = layout_of(type_)
    return attributes if layout is None else attributes | {LAYOUT: LayoutAttr(layout)}


def _dictionaries(
    dictionaries: Iterable[dict[str, Attribute]],
) -> ArrayAttr[DictionaryAttr] | None:
    found = list(dictionaries)
    return ArrayAttr([DictionaryAttr(d) for d in found]) if any(found) else None


def project(module: ModuleOp, rank: int) -> ModuleOp:
    """
    The per-rank form of a distributed program for the device with id `rank`, a new
    module. Functions of which nothing runs there are left out, except the entry.
    """
    devices = devices_of(module)
    if rank not in devices:
        raise DistIRError(
            f"the program does not run on device {rank}; its devices are "
            f"{', '.join(map(str, devices))}"
        )
    program = _Projection(module, rank)
    bodies: list[Operation] = []
    for op in module.body.block.ops:
        if isinstance(op, FuncOp):
            function = program.function(op.sym_name.data)
            if function is not None:
                bodies.append(function)
        else:
            bodies.append(op.clone())
    result = ModuleOp(bodies)
    result.attributes.update(module.attributes)
    return result


@dataclass(frozen=True)
class ProjectPass(DistIRPass):
    """
    Turns a distributed program into the program of one device: local shapes, only that
    device's ops, collectives with explicit groups, sends and receives. A receiver
    of what is sent asynchronously starts right after its transfer before that one, and
    waits right before it uses the value. So does whoever uses what an asynchronous
    collective gives, also in the caller of the function that started it. Arguments and
    results keep in
    `dist.layout` the layout that they had.
    """

    name = "project"

    rank: int = 0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        projected = project(op, self.rank)
        block = op.body.block
        for old in list(block.ops):
            old.detach()
            old.erase(safe_erase=False)
        for new in list(projected.body.block.ops):
            new.detach()
            block.add_op(new)
