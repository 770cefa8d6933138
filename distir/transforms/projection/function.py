"""Projects a function to one device, op by op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import IntegerAttr, SymbolRefAttr, TensorType, i64
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from distir.dialects import dist
from distir.dialects.collective_ops.base import CollectiveOp, bucket_of, is_per_rank
from distir.dialects.collective_ops.distributed import InDistributedForm
from distir.dialects.collective_ops.per_rank import (
    CoordinateOp,
    RecvFromRankOp,
    SendToRankOp,
    WaitOp,
)
from distir.dialects.collective_ops.rank_form import InRankForm
from distir.dialects.collective_ops.rooted import RootedOp
from distir.dialects.dist import LAYOUT, LayoutAttr, layout_of
from distir.dialects.dist_attributes import ASYNCHRONOUS, SCOPE
from distir.dialects.train_ops.opaque import OpaqueBase
from distir.dialects.train_ops.recurrent import GatheredOp
from distir.errors import DistIRError
from distir.program import (
    ENTRY,
    argument_attributes,
    called,
    describe,
    result_attributes,
    return_op,
    set_argument_attributes,
    set_result_attributes,
)
from distir.sharding.local import local_ops, mesh_of_op
from distir.sharding.mesh import Mesh
from distir.sharding.sends import SentPiece, keeps_coordinates
from distir.transforms.projection.collectives import (
    layouts_around,
    per_rank_collective,
    placeholder,
)
from distir.transforms.projection.pieces import PieceOps
from distir.transforms.projection.rank_program import Projection

MESH = "mesh"
"""The attribute of per-rank collectives that names the mesh of their `axes`."""


@dataclass
class FunctionProjection:
    """
    The projection of one function to one device.

    - `program`: the state that all functions of the device's program share;
    - `source`: the function that is projected;
    - `block`: the body of the projected function;
    - `values`: maps values of `source` to values of the projected function;
    - `arriving`: the values of `source` that are in flight and for which no op has waited
      yet;
    - `pieces`: maps each value of `source` that arrives in pieces to its pieces.
    """

    program: Projection
    source: FuncOp
    block: Block = field(default_factory=Block)
    values: dict[SSAValue, SSAValue] = field(
        default_factory=lambda: dict[SSAValue, SSAValue]()
    )
    arriving: dict[SSAValue, None] = field(
        default_factory=lambda: dict[SSAValue, None]()
    )
    pieces: dict[SSAValue, list[tuple[SentPiece, SSAValue]]] = field(
        default_factory=lambda: dict[SSAValue, list[tuple[SentPiece, SSAValue]]]()
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
        return_op(source)
        for op in source.body.block.ops:
            self._project(op)
        last = self.block.last_op
        assert isinstance(last, ReturnOp)
        empty = last is self.block.first_op and not last.operands
        if empty and source.sym_name.data != ENTRY:
            return None
        function = FuncOp(
            source.sym_name.data,
            (self.block.arg_types, last.operand_types),
            Region(self.block),
            source.sym_visibility,
        )
        set_argument_attributes(
            function, [_with_layout(own, argument.type) for argument, own in arguments]
        )
        results = zip(
            result_attributes(source), source.function_type.outputs, strict=True
        )
        set_result_attributes(
            function,
            [_with_layout(own, t) for own, t in results if program.lives_here(t)],
        )
        function.attributes.update(source.attributes)
        return function

    def _project(self, op: Operation) -> None:
        """Appends the ops that do this device's part of `op`."""
        if is_per_rank(op):
            raise DistIRError(
                f"{describe(op)} belongs to the program of one rank already; project the "
                f"distributed program"
            )
        if isinstance(op, ReturnOp):
            self._wait(self._awaited_at_end(op))
        elif isinstance(op, CollectiveOp):
            # The first collective of a bucket waits for all: no wait may come between.
            bucket = [] if op.is_joined else bucket_of(op)
            self._wait(v for o in bucket for v in o.operands)
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
            case RootedOp():
                self._rooted(op)
            case InDistributedForm():
                self._collective(op)
            case _:
                self._compute(op)

    def _awaited_at_end(self, end: ReturnOp) -> list[SSAValue]:
        """
        Returns the values for which the function waits before it returns: all values in
        flight, except for results of collectives that the function may return in
        flight. The entry function waits for all values.
        """
        name = self.source.sym_name.data
        pending = {
            v
            for v in end.operands
            if v in self.arriving
            and name != ENTRY
            and list(end.operands).count(v) == 1  # the caller waits for it once
            and not isinstance(v.owner, dist.SendOp)
        }
        here = [v for v in end.operands if self._here(v)]
        self.program.arriving[name] = frozenset(
            i for i, v in enumerate(here) if v in pending
        )
        return [v for v in self.arriving if v not in pending]

    def _wait(self, values: Iterable[SSAValue]) -> None:
        """Appends a wait for each of `values` that is still in flight."""
        for value in list(values):
            if value not in self.arriving:
                continue
            del self.arriving[value]
            if value in self.pieces:
                self._join(value)
            else:
                hint = value.name_hint or "received"
                self.values[value] = self._waited_for(self.values[value], hint)

    def _waited_for(self, arriving: SSAValue, hint: str) -> SSAValue:
        wait = WaitOp(arriving)
        wait.result.name_hint = hint
        self.block.add_op(wait)
        return wait.result

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
        """Appends `ops`. The last op of `ops` computes the results of `op`."""
        for new in ops:
            if SCOPE in op.attributes and SCOPE not in new.attributes:
                new.attributes[SCOPE] = op.attributes[SCOPE]
            new.location = op.location
            names_axes = isinstance(new, CollectiveOp | CoordinateOp) or (
                isinstance(new, GatheredOp | OpaqueBase) and new.axes is not None
            )
            if mesh is not None and names_axes:
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
        call = called(
            op,
            op.callee.string_value(),
            [self.values[v] for v in op.operands if self._here(v)],
            [self.program.local(r.type) for r in results],
        )
        self.block.add_op(call)
        arriving = self.program.arriving[op.callee.string_value()]
        for i, (old, new) in enumerate(zip(results, call.results, strict=True)):
            new.name_hint = old.name_hint
            self.values[old] = new
            if i in arriving:
                self.arriving[old] = None

    def _send(self, op: dist.SendOp) -> None:
        """
        Projects a send. Pairs of devices with the same coordinates are processed in
        mesh order. A device that both sends and receives thus does not wait for itself.
        """
        rank = self.program.rank
        before, after = layouts_around(op)
        source, target = (self.program.mesh_of[x.mesh] for x in (before, after))
        if not keeps_coordinates(before, source, after, target):
            self._send_pieces(op)
            return
        for sender, receiver in zip(source.devices, target.devices, strict=True):
            if sender == receiver == rank:
                self.values[op.result] = self.values[op.source]
            elif sender == rank:
                self._send_to(op, self._operands(op)[0], receiver)
            elif receiver == rank:
                recv = self._receive(op, self.program.local(op.result.type), sender)
                self.values[op.result] = recv.result
                if recv.is_asynchronous:
                    self.arriving[op.result] = None

    def _send_to(self, op: dist.SendOp, value: SSAValue, receiver: int) -> None:
        send = SendToRankOp(value, receiver)
        send.attributes.update(op.attributes)
        self.block.add_op(send)

    def _receive(
        self, op: dist.SendOp, type_: Attribute, sender: int
    ) -> RecvFromRankOp:
        recv = RecvFromRankOp(type_, sender)
        recv.attributes.update(op.attributes)
        recv.result.name_hint = op.result.name_hint
        self.block.add_op(recv)
        if recv.is_asynchronous:
            self._start_early(recv)
            recv.result.name_hint = "arriving"
        return recv

    def _send_pieces(self, op: dist.SendOp) -> None:
        """
        Projects a send between meshes of different shapes. Appends the sends and
        receives of this device's pieces, in the order of all pieces.
        """
        rank, received = self.program.rank, list[tuple[SentPiece, SSAValue]]()
        for piece in (piece for pieces in self.program.sent(op) for piece in pieces):
            if piece.sender == rank:
                cut = PieceOps()
                value = cut.taken(self._operands(op)[0], piece.taken)
                self._add_all(op, cut.ops)
                if piece.receiver == rank:
                    received.append((piece, value))
                else:
                    self._send_to(op, value, piece.receiver)
            elif piece.receiver == rank:
                assert isinstance(op.result.type, TensorType)
                shape = [stop - start for start, stop in piece.taken]
                type_ = TensorType(op.result.type.element_type, shape)
                recv = self._receive(op, type_, piece.sender)
                received.append((piece, recv.result))
        if self._here(op.result):
            self.pieces[op.result] = received
            if ASYNCHRONOUS in op.attributes:
                self.arriving[op.result] = None
            else:
                self._join(op.result)

    def _join(self, value: SSAValue) -> None:
        """Waits for the pieces of `value` and joins them to the whole value."""
        received = [
            (piece, self._waited_for(part, "piece") if _is_in_flight(part) else part)
            for piece, part in self.pieces.pop(value)
        ]
        op, whole = value.owner, self.program.local(value.type)
        assert isinstance(op, dist.SendOp) and isinstance(whole, TensorType)
        before, _ = layouts_around(op)
        reduction = next((reduction for _, reduction in before.partial), "sum")
        parts = PieceOps()
        self.values[value] = parts.joined(received, whole, reduction)
        self._add_all(op, parts.ops)
        self.values[value].name_hint = value.name_hint

    def _add_all(self, op: Operation, ops: Sequence[Operation]) -> None:
        """Appends `ops` with the scope and the location of `op`."""
        for new in ops:
            if SCOPE in op.attributes:
                new.attributes[SCOPE] = op.attributes[SCOPE]
            new.location = op.location
            self.block.add_op(new)

    def _start_early(self, recv: RecvFromRankOp) -> None:
        """
        Moves `recv`, which is the last op of the block, up to the preceding send or
        receive, so that the device computes while the value is in flight. The order of
        sends and receives does not change.
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

    def _collective(self, op: InDistributedForm) -> None:
        before, _ = layouts_around(op)
        mesh = self.program.mesh_of[before.mesh]
        if self.program.rank not in mesh.devices:
            return
        self._take_part(op, mesh, self._operands(op)[0])
        if op.is_asynchronous:
            self.arriving[op.result] = None

    def _rooted(self, op: RootedOp) -> None:
        """
        Projects a collective between two meshes, one of which is only the root device.
        A device without an operand passes a placeholder. A device that has no use for
        the result ignores it.
        """
        before, after = layouts_around(op)
        one, many = (before, after) if op.FROM_ROOT else (after, before)
        mesh = self.program.mesh_of[many.mesh]
        if not mesh.has_root(self.program.mesh_of[one.mesh], op.axis_names):
            raise DistIRError(
                f"{describe(op)} cannot have its root on @{one.mesh}; run "
                f"verify-distribution"
            )
        (root,) = self.program.mesh_of[one.mesh].devices
        if self.program.rank not in mesh.devices:
            return
        source = self.values.get(op.source)
        if source is None:
            type_ = self.program.local(op.source.type)
            assert isinstance(type_, TensorType)
            constant = placeholder(type_)
            self.block.add_op(constant)
            source = constant.results[0]
        new = self._take_part(op, mesh, source)
        new.properties["root"] = IntegerAttr(root, i64)

    def _take_part(
        self, op: InDistributedForm, mesh: Mesh, source: SSAValue
    ) -> InRankForm:
        program = self.program
        new = per_rank_collective(op, source, program.rank, mesh, program.mesh_of)
        if len(op.operands) > 1:
            new.operands = [source, *self._operands(op)[1:]]
        self._append(op, [new], mesh)
        return new


def _is_in_flight(value: SSAValue) -> bool:
    """
    Whether the piece `value` is still in flight, so that the device must wait for it.
    """
    owner = value.owner
    return isinstance(owner, RecvFromRankOp) and owner.is_asynchronous


def _with_layout(
    attributes: dict[str, Attribute], type_: Attribute
) -> dict[str, Attribute]:
    layout = layout_of(type_)
    return attributes if layout is None else attributes | {LAYOUT: LayoutAttr(layout)}
