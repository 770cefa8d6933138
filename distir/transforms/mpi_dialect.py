"""Writes the communication of a program of local tensors as ops of xDSL's `mpi`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from xdsl.dialects import arith, bufferization, memref, mpi, tensor
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    IndexType,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    TensorType,
    UnitAttr,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
)
from xdsl.dialects.linalg.ops import TransposeOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.collective import COLLECTIVES
from distir.dialects.collective_ops import kinds
from distir.dialects.collective_ops.base import is_per_rank
from distir.dialects.collective_ops.local_form import InLocalForm
from distir.dialects.collective_ops.per_rank import (
    CoordinateOp,
    RecvFromRankOp,
    SendToRankOp,
    WaitOp,
)
from distir.dialects.collective_ops.rank_form import InRankForm, RootedInRankForm
from distir.dialects.collective_ops.spmd_form import (
    InSpmdForm,
    RankCountOp,
    ThisRankOp,
)
from distir.dialects.dist_attributes import SCOPE
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.program import describe, functions
from distir.program.functions import return_op
from distir.program.rewriting import erase_dead
from distir.sharding.mesh import Mesh, meshes
from distir.transforms.shard_dialect import mesh_of

ELEMENTS = (f32, f64, i8, i16, i32, i64)
"""The element types for which xDSL knows a datatype of MPI."""

REDUCTIONS = {
    "sum": mpi.MpiOp.MPI_SUM,
    "max": mpi.MpiOp.MPI_MAX,
    "min": mpi.MpiOp.MPI_MIN,
}

_Op = TypeVar("_Op", bound=Operation)


def to_mpi(module: ModuleOp) -> None:
    """
    Replaces the communication of a program of local tensors by ops of the `mpi`
    dialect. A rank's number is its number in MPI's communicator of all processes. The
    program neither starts nor ends MPI. Collectives block; asynchronous sends and
    receives do not.

    Raises DistIRError for communication that the dialect cannot express: collectives
    among only some of the ranks, collectives without an op in the dialect, tensors that
    are split in repeating runs of elements, and element types without an MPI datatype.
    Also raises DistIRError if the program's devices are not 0, 1, 2, ...
    """
    known = meshes(module)
    ranks = sorted({device for mesh in known.values() for device in mesh.devices})
    if ranks != list(range(len(ranks))):
        raise DistIRError(
            f"collective-to-mpi: the meshes of the program have the devices "
            f"{', '.join(map(str, ranks))}; processes of MPI are numbered 0, 1, 2, ..., "
            f"so give the meshes these devices"
        )
    for function in functions(module).values():
        in_flight = _InFlight()
        for op in list(function.walk()):
            if isinstance(op, COLLECTIVES):
                raise DistIRError(
                    f"collective-to-mpi: {describe(op)} belongs to a distributed "
                    f"program; run project{{spmd}} or project{{rank=...}} before"
                )
            if is_per_rank(op) or isinstance(op, InLocalForm):
                _Lowering(op, known, len(ranks), in_flight).lower()
        if not function.is_declaration:
            in_flight.wait_before(return_op(function))
            erase_dead(function.body.block)
        # Only now, when those that only named groups are gone.
        for op in list(function.walk()):
            if isinstance(op, ThisRankOp | RankCountOp):
                _Lowering(op, known, len(ranks), in_flight).lower_number(op)


@dataclass
class _InFlight:
    """
    The messages that a function has not waited for yet.

    - `arriving`: the buffers and requests of receives, by the results of the receive
      ops;
    - `sent`: the requests of sends.
    """

    arriving: dict[SSAValue, tuple[SSAValue, SSAValue]] = field(
        default_factory=dict[SSAValue, tuple[SSAValue, SSAValue]]
    )
    sent: list[SSAValue] = field(default_factory=list[SSAValue])

    def wait_before(self, op: Operation) -> None:
        """
        Adds waits for all sends in flight before `op`. After the waits, the buffers of
        the sends are free.
        """
        for request in self.sent:
            Rewriter.insert_op(mpi.WaitOp(request), InsertPoint.before(op))


@dataclass
class _Lowering:
    """
    Replaces the op `op` by ops of the `mpi` dialect.

    - `known`: the meshes of the program, by name;
    - `ranks`: the number of ranks of the meshes;
    - `in_flight`: the messages that the function of `op` has not waited for yet.
    """

    op: Operation
    known: Mapping[str, Mesh]
    ranks: int
    in_flight: _InFlight
    made: dict[int, SSAValue] = field(default_factory=dict[int, SSAValue])

    def lower(self) -> None:
        """Replaces the op."""
        op = self.op
        match op:
            case CoordinateOp():
                index = DenseIntOrFPElementsAttr.from_list(
                    TensorType(i64, []), [op.index.value.data]
                )
                self._replace(self._add(arith.ConstantOp(index)).result)
            case SendToRankOp():
                self._send(op)
            case RecvFromRankOp() if op.is_asynchronous and op.result.uses:
                self._receive_later(op)
                return  # the wait replaces it
            case RecvFromRankOp():
                self._receive(op)
            case WaitOp():
                self._wait(op)
                return
            case InLocalForm():
                self._replace(self._collective(op))
            case _:
                raise self._error("has no op in xDSL's mpi dialect")
        Rewriter.erase_op(op)

    def lower_number(self, op: ThisRankOp | RankCountOp) -> None:
        """
        Replaces the op that returns the rank, or the number of ranks, by MPI's op for
        the same number.
        """
        number = mpi.CommRankOp() if isinstance(op, ThisRankOp) else mpi.CommSizeOp()
        wide = self._add(arith.ExtSIOp(self._add(number).results[0], i64)).result
        made = self._add(tensor.FromElementsOp(wide, result_type=op.result.type))
        self._replace(made.result)
        Rewriter.erase_op(op)

    def _collective(self, op: InLocalForm) -> SSAValue:
        """Adds the ops of a collective, and returns the result of the collective."""
        if op.number("run") is not None:
            raise self._error("deals out its tensor in runs, which mpi cannot")
        if isinstance(op, kinds.Slice):
            return self._slice(op)
        if isinstance(op, kinds.Permute):
            return self._permute(op)
        if not isinstance(op, _WITH_OP):
            raise self._error(
                "has no op in xDSL's mpi dialect, which has those for all_reduce, "
                "all_gather (a gather and a broadcast), reduce, broadcast, gather and "
                "permute; run decompose-collectives before project, which writes "
                "reduce_scatter and all_to_all with these"
            )
        self._check_group(op)
        source = self._buffer_of(op.source)
        root = self._number(op.root_rank if isinstance(op, RootedInRankForm) else 0)
        if isinstance(op, kinds.AllGather | kinds.Gather):
            return self._gather(op, source, root)
        target = self._allocated(op.result.type)
        if isinstance(op, kinds.Broadcast):
            self._add(memref.CopyOp(source, target))
            self._add(mpi.BcastOp(*self._unwrapped(target), root))
            return self._tensor(target)
        assert op.reduction_name is not None
        pointer, count, type_ = self._unwrapped(source)
        into, _, _ = self._unwrapped(target)
        reduction = REDUCTIONS[op.reduction_name]
        if isinstance(op, kinds.Reduce):
            self._add(mpi.ReduceOp(pointer, into, count, type_, reduction, root))
        else:
            self._add(mpi.AllreduceOp(pointer, into, count, type_, reduction))
        return self._tensor(target)

    def _gather(self, op: InLocalForm, source: SSAValue, root: SSAValue) -> SSAValue:
        """
        Adds the ops that gather the parts of all ranks on the rank `root`, and for an
        all-gather also broadcast the result. MPI concatenates the parts along the first
        dimension; to concatenate along a different dimension, the tensors are
        transposed.
        """
        shape, dim = shape_of(op.source), op.number("dim") or 0
        type_ = op.result.type
        assert isinstance(type_, TensorType)
        parts = type_.get_shape()[dim] // shape[dim]
        target = self._allocated(TensorType(type_.element_type, [parts, *shape]))
        sent, received = self._unwrapped(source), self._unwrapped(target)
        # MPI counts the elements that it receives from each rank.
        self._add(mpi.GatherOp(*sent, received[0], sent[1], received[2], root))
        if isinstance(op, kinds.AllGather):
            self._add(mpi.BcastOp(*received, root))
        stacked = self._tensor(target)
        if dim:
            order = [*range(1, dim + 1), 0, *range(dim + 1, len(shape) + 1)]
            sizes = [[parts, *shape][i] for i in order]
            empty = self._add(tensor.EmptyOp([], TensorType(type_.element_type, sizes)))
            turned = TransposeOp(
                stacked,
                empty.tensor,
                DenseArrayBase.from_list(i64, order),
                empty.tensor.type,
            )
            stacked = self._add(turned).results[0]
        groups = [[i] if i < dim else [i + 1] for i in range(len(shape))]
        groups[dim] = [dim, dim + 1]
        reassociation = ArrayAttr(
            ArrayAttr(IntegerAttr(i, i64) for i in group) for group in groups
        )
        joined = tensor.CollapseShapeOp.build(
            operands=[stacked],
            result_types=[type_],
            properties={"reassociation": reassociation},
        )
        return self._add(joined).result

    def _slice(self, op: kinds.Slice) -> SSAValue:
        """Adds the ops that keep this rank's part of a tensor."""
        dim = op.properties["dim"]
        assert isinstance(dim, IntegerAttr)
        sizes = list(shape_of(op.result))
        position = self._position(op)
        start = self._add(arith.MuliOp(position, self._number(sizes[dim.value.data])))
        index = self._add(arith.IndexCastOp(start.result, IndexType())).result
        starts = [index if i == dim.value.data else 0 for i in range(len(sizes))]
        strides = [1] * len(sizes)
        made = tensor.ExtractSliceOp(op.source, starts, sizes, strides, op.result.type)
        return self._add(made).result

    def _permute(self, op: kinds.Permute) -> SSAValue:
        """
        Adds the ops of a ring shift: a send that does not wait, a receive, and the wait
        for the send.
        """
        mesh = self._mesh(op)
        (axis,) = op.axis_names
        shift = op.properties.get("shift")
        by = shift.value.data if isinstance(shift, IntegerAttr) else 1
        source = self._unwrapped(self._buffer_of(op.source))
        target = self._allocated(op.result.type)
        after, before = (self._neighbour(mesh, axis, n) for n in (by, -by))
        tag = self._number(0)
        request = self._request()
        self._add(mpi.IsendOp(*source, after, tag, request))
        self._add(mpi.RecvOp(*self._unwrapped(target), before, tag))
        self._add(mpi.WaitOp(request))
        return self._tensor(target)

    def _send(self, op: SendToRankOp) -> None:
        peer, tag = self._number(op.peer.value.data), self._number(0)
        source = self._unwrapped(self._buffer_of(op.source))
        if not op.is_asynchronous:
            self._add(mpi.SendOp(*source, peer, tag))
            return
        request = self._request()
        self._add(mpi.IsendOp(*source, peer, tag, request))
        self.in_flight.sent.append(request)

    def _receive(self, op: RecvFromRankOp) -> None:
        buffer = self._allocated(op.result.type)
        target, peer = self._unwrapped(buffer), self._number(op.peer.value.data)
        self._add(mpi.RecvOp(*target, peer, self._number(0)))
        self._replace(self._tensor(buffer))

    def _receive_later(self, op: RecvFromRankOp) -> None:
        if not all(isinstance(use.operation, WaitOp) for use in op.result.uses):
            raise self._error(
                "is still in flight when its function returns it, which mpi cannot say; "
                "run inline-calls before project"
            )
        buffer, request = self._allocated(op.result.type), self._request()
        target, peer = self._unwrapped(buffer), self._number(op.peer.value.data)
        self._add(mpi.IrecvOp(*target, peer, self._number(0), request))
        self.in_flight.arriving[op.result] = buffer, request

    def _wait(self, op: WaitOp) -> None:
        """
        Adds a wait for a received tensor. Collectives need no wait, because they block.
        """
        source = op.source
        if source not in self.in_flight.arriving:
            self._replace(source)
            Rewriter.erase_op(op)
            return
        buffer, request = self.in_flight.arriving.pop(source)
        self._add(mpi.WaitOp(request))
        self._replace(self._tensor(buffer))
        Rewriter.erase_op(op)
        assert isinstance(source.owner, RecvFromRankOp)
        Rewriter.erase_op(source.owner)

    def _request(self) -> SSAValue:
        """Returns a new request of MPI, which identifies a message in flight."""
        requests = self._add(mpi.AllocateTypeOp(mpi.RequestType, self._number(1)))
        return self._add(mpi.VectorGetOp(requests.result, self._number(0))).result

    def _check_group(self, op: InLocalForm) -> None:
        """Raises DistIRError unless the op runs among all ranks, in ascending order."""
        if isinstance(op, InRankForm):
            complete = op.ranks == tuple(range(self.ranks))
        else:
            axes = self._mesh(op).axes
            # The size of the outermost axis is not in the code, even if it is 1.
            needed = [axes[0][0], *(name for name, n in axes[1:] if n > 1)]
            complete = [a for a in op.axis_names if a in needed] == needed
        if not complete:
            raise self._error(
                f"runs in groups of ranks along {', '.join(op.axis_names)}, but xDSL's "
                f"mpi dialect has only the communicator of all ranks; distribute the "
                f"program over one axis, as distribute{{t=4}} does, or lower it with "
                f"collective-to-shard"
            )

    def _mesh(self, op: Operation) -> Mesh:
        """Returns the mesh of an op in a program that all ranks share."""
        if not isinstance(op, InSpmdForm):
            raise self._error(
                "depends on the rank's own position, which the program of one rank does "
                "not say; use project{spmd} instead of project{rank=...}"
            )
        return mesh_of(op, self.known, "collective-to-mpi")

    def _position(self, op: kinds.Slice) -> SSAValue:
        """Returns this rank's position along the axes of an op, major axis first."""
        mesh = self._mesh(op)
        first, *others = op.axis_names
        total = self._coordinate(mesh, first)
        for axis in others:
            size = self._number(mesh.size(axis))
            scaled = self._add(arith.MuliOp(total, size)).result
            total = self._add(arith.AddiOp(scaled, self._coordinate(mesh, axis))).result
        return total

    def _coordinate(self, mesh: Mesh, axis: str) -> SSAValue:
        """Returns this rank's coordinate on an axis."""
        rank = self._add(mpi.CommRankOp()).rank
        stride = self._number(mesh.stride(axis))
        found = self._add(arith.DivSIOp(rank, stride)).result
        if axis != mesh.axes[0][0]:
            found = self._add(
                arith.RemSIOp(found, self._number(mesh.size(axis)))
            ).result
        return found

    def _neighbour(self, mesh: Mesh, axis: str, shift: int) -> SSAValue:
        """
        Returns the number of the rank `shift` positions further along an axis, which
        forms a ring.
        """
        own = self._coordinate(mesh, axis)
        stride = mesh.stride(axis)
        if axis == mesh.axes[0][0]:
            ranks = self._add(mpi.CommSizeOp()).size
            size = self._add(arith.DivSIOp(ranks, self._number(stride))).result
        else:
            size = self._number(mesh.size(axis))
        # A remainder has the sign of what is divided: the size is added to a step back.
        moved = self._add(arith.AddiOp(own, self._number(shift))).result
        moved = self._add(arith.RemSIOp(moved, size)).result
        moved = self._add(arith.AddiOp(moved, size)).result
        moved = self._add(arith.RemSIOp(moved, size)).result
        steps = self._add(arith.SubiOp(moved, own)).result
        distance = self._add(arith.MuliOp(steps, self._number(stride))).result
        return self._add(
            arith.AddiOp(self._add(mpi.CommRankOp()).rank, distance)
        ).result

    def _buffer_of(self, value: SSAValue) -> SSAValue:
        """Returns a buffer that holds a tensor, for reading."""
        type_ = self._memref(value.type)
        made = bufferization.ToBufferOp.build(
            operands=[value],
            result_types=[type_],
            properties={"read_only": UnitAttr()},
        )
        return self._add(made).memref

    def _allocated(self, type_: Attribute) -> SSAValue:
        """Returns a new buffer for a tensor of type `type_`."""
        buffer = self._memref(type_)
        made = memref.AllocOp.get(buffer.element_type, shape=buffer.get_shape())
        return self._add(made).memref

    def _memref(self, type_: Attribute) -> MemRefType:
        assert isinstance(type_, TensorType)
        if type_.element_type not in ELEMENTS:
            raise self._error(
                f"sends {type_.element_type}, for which xDSL knows no datatype of MPI; "
                f"convert the tensor to one of {', '.join(map(str, ELEMENTS))}"
            )
        return MemRefType(type_.element_type, type_.get_shape())

    def _unwrapped(self, buffer: SSAValue) -> tuple[SSAValue, SSAValue, SSAValue]:
        """Returns the pointer, the number of elements and the datatype of a buffer."""
        made = self._add(mpi.UnwrapMemRefOp(buffer))
        return made.ptr, made.len, made.type

    def _tensor(self, buffer: SSAValue) -> SSAValue:
        """Returns the tensor in a buffer that no later op writes."""
        return self._add(bufferization.ToTensorOp(buffer, restrict=True)).tensor

    def _number(self, value: int) -> SSAValue:
        """Returns a constant 32-bit integer."""
        if value not in self.made:
            made = self._add(arith.ConstantOp.from_int_and_width(value, i32))
            self.made[value] = made.result
        return self.made[value]

    def _add(self, op: _Op) -> _Op:
        """
        Inserts an op before the replaced op, with the replaced op's location and scope.
        """
        op.location = self.op.location
        if SCOPE in self.op.attributes:
            op.attributes[SCOPE] = self.op.attributes[SCOPE]
        Rewriter.insert_op(op, InsertPoint.before(self.op))
        return op

    def _replace(self, value: SSAValue) -> None:
        (result,) = self.op.results
        value.name_hint = result.name_hint
        result.replace_all_uses_with(value)

    def _error(self, why: str) -> DistIRError:
        return DistIRError(f"collective-to-mpi: {describe(self.op)} {why}")


_WITH_OP = (
    kinds.AllReduce,
    kinds.AllGather,
    kinds.Reduce,
    kinds.Broadcast,
    kinds.Gather,
)
"""The kinds of collectives that ops of the `mpi` dialect can express."""
