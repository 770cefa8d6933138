"""
Implementations of the ops of `collective` and `dist` for the reference interpreter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
from xdsl.dialects.func import FuncOp
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    OpImplResult,
    PythonValues,
    impl,
    register_impls,
)
from xdsl.ir import Operation

from distir.dialects import collective, dist
from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import PermuteOp, RaggedAllToAllOp
from distir.dialects.collective_ops.per_rank import (
    CoordinateOp,
    RecvFromRankOp,
    SendToRankOp,
    WaitOp,
)
from distir.dialects.collective_ops.rank_form import RANK_OPS
from distir.dialects.collective_ops.rooted import RootedOp
from distir.dialects.dist import Layout, layout_of
from distir.errors import DistIRError
from distir.interpreters.sharded import Array, Sharded, from_shards, mesh_of
from distir.program import describe
from distir.sharding.layout import COMBINE, assemble, local_shape, take_shard
from distir.sharding.mesh import Mesh
from distir.sharding.sends import keeps_coordinates, plan_send


def only(layout: Layout, axes: Collection[str]) -> Layout:
    """
    Returns `layout` restricted to `axes`: axes that are not in `axes` neither split the
    value nor make it partial.
    """
    return replace(
        layout,
        dims=tuple(tuple(s for s in dim if s.axis in axes) for dim in layout.dims),
        partial=tuple(p for p in layout.partial if p[0] in axes),
    )


def exchange(source: Sharded, after: Layout, axes: tuple[str, ...]) -> list[Array]:
    """
    Returns the shards, one per device, after a collective over `axes` that changes the
    layout of `source` to `after`. Each group of devices along `axes` acts as a small
    mesh. The shards of a group are assembled, and the result is split again as `after`
    says.
    """
    mesh, before = source.mesh, source.layout
    others = [axis for axis, _ in mesh.axes if axis not in axes]
    shape = local_shape(source.shape, only(before, others), mesh)
    inner_before, inner_after = only(before, axes), only(after, axes)
    group_axes = tuple((axis, mesh.size(axis)) for axis in axes)
    results: dict[int, Array] = {}
    for group in mesh.groups(axes):
        members = Mesh(mesh.name, group_axes, group)
        shards = [source.on(device) for device in group]
        whole = assemble(shards, shape, inner_before, members)
        if not inner_after.split_axes and not inner_after.partial:
            results.update(dict.fromkeys(group, whole))
            continue
        for device, coordinates in zip(group, members.coordinates, strict=True):
            results[device] = take_shard(whole, inner_after, members, coordinates)
    return [results[device] for device in mesh.devices]


def received(source: Sharded, after: Layout, target: Mesh) -> list[Array]:
    """
    Returns the shards that the devices of mesh `target` hold after `source` was sent to
    this mesh with layout `after`. Each shard is assembled from the pieces that its
    device receives.
    """
    reduction = next((reduction for _, reduction in source.layout.partial), "sum")
    shape = local_shape(source.shape, after, target)
    kind = source.shards[0].dtype
    terms: dict[int, dict[int, Array]] = {device: {} for device in target.devices}
    for pieces in plan_send(source.shape, source.layout, source.mesh, after, target):
        for piece in pieces:
            taken = tuple(slice(*interval) for interval in piece.taken)
            placed = tuple(slice(*interval) for interval in piece.placed)
            own = terms[piece.receiver].setdefault(piece.term, np.empty(shape, kind))
            own[placed] = source.on(piece.sender)[taken]
    return [
        reduce(COMBINE[reduction], own.values()) if own else np.zeros(shape, kind)
        for own in terms.values()
    ]


@register_impls
class CommunicationFunctions(InterpreterFunctions):
    """Runs reshards, sends and collectives on stacks of shards."""

    def __init__(self, meshes: Mapping[str, Mesh]):
        self.meshes = meshes

    @classmethod
    def _impls(cls) -> Iterable[tuple[type[Operation], Any]]:
        own = dict(super()._impls())
        yield from own.items()
        for op_type in collective.COLLECTIVES:
            if op_type not in own:
                is_rooted = issubclass(op_type, RootedOp)
                yield op_type, cls.run_rooted if is_rooted else cls.run_over_axes
        for op_type in RANK_OPS.values():
            yield op_type, cls.run_in_rank_form

    def run_over_axes(
        self, interpreter: Interpreter, op: CollectiveOp, args: PythonValues
    ) -> OpImplResult:
        source = self._distributed(op, args[0])
        after = layout_of(op.result)
        assert after is not None
        shards = exchange(source, after, op.axis_names)
        return self._result(op, from_shards(shards, op.result.type, self.meshes))

    def run_in_rank_form(
        self, interpreter: Interpreter, op: Operation, args: PythonValues
    ) -> OpImplResult:
        raise _per_rank(op)

    @impl(RaggedAllToAllOp)
    def run_ragged(
        self,
        interpreter: Interpreter,
        op: RaggedAllToAllOp,
        args: PythonValues,
    ) -> PythonValues:
        source = self._distributed(op, args[0])
        arriving = self._distributed(op, args[2])
        after = layout_of(op.result)
        assert after is not None
        shards = [
            np.where(rows[..., None] >= 0, values, np.zeros((), values.dtype))
            for values, rows in zip(
                exchange(source, after, op.axis_names), arriving.shards, strict=True
            )
        ]
        return (from_shards(shards, op.result.type, self.meshes),)

    def run_rooted(
        self, interpreter: Interpreter, op: RootedOp, args: PythonValues
    ) -> OpImplResult:
        """
        Runs a collective with a root device. Only the root holds the operand, or only
        the root gets the result.
        """
        source = self._distributed(op, args[0])
        return self._result(
            op, Sharded.split(source.assemble(), op.result.type, self.meshes)
        )

    @impl(PermuteOp)
    def run_permute(
        self, interpreter: Interpreter, op: PermuteOp, args: PythonValues
    ) -> PythonValues:
        source = self._distributed(op, args[0])
        (axis,) = op.axis_names
        shift = 1 if op.shift is None else op.shift.value.data
        mesh = source.mesh
        shards = [
            source.shards[
                mesh.position({**at, axis: (at[axis] - shift) % mesh.size(axis)})
            ]
            for at in mesh.coordinates
        ]
        return (from_shards(shards, op.result.type, self.meshes),)

    @impl(CoordinateOp)
    def run_coordinate(
        self, interpreter: Interpreter, op: CoordinateOp, args: PythonValues
    ) -> PythonValues:
        if isinstance(op.parent_op(), FuncOp):  # else it is of a local form
            raise _per_rank(op)
        return (np.array(op.index.value.data, dtype=np.int64),)

    @impl(dist.SendOp)
    def run_send(
        self, interpreter: Interpreter, op: dist.SendOp, args: PythonValues
    ) -> PythonValues:
        source = self._distributed(op, args[0])
        after = layout_of(op.result)
        assert after is not None
        target = mesh_of(after, self.meshes)
        shards: Sequence[Array] = source.shards
        if not keeps_coordinates(source.layout, source.mesh, after, target):
            shards = received(source, after, target)
        return (from_shards(shards, op.result.type, self.meshes),)

    @impl(dist.ReshardOp)
    def run_reshard(
        self, interpreter: Interpreter, op: dist.ReshardOp, args: PythonValues
    ) -> PythonValues:
        source = self._distributed(op, args[0])
        return (Sharded.split(source.assemble(), op.result.type, self.meshes),)

    @impl(dist.ConstrainOp)
    def run_constrain(
        self, interpreter: Interpreter, op: dist.ConstrainOp, args: PythonValues
    ) -> PythonValues:
        return args

    @impl(SendToRankOp)
    def run_rank_send(
        self, interpreter: Interpreter, op: SendToRankOp, args: PythonValues
    ) -> PythonValues:
        raise _per_rank(op)

    @impl(RecvFromRankOp)
    def run_rank_recv(
        self,
        interpreter: Interpreter,
        op: RecvFromRankOp,
        args: PythonValues,
    ) -> PythonValues:
        raise _per_rank(op)

    @impl(WaitOp)
    def run_rank_wait(
        self, interpreter: Interpreter, op: WaitOp, args: PythonValues
    ) -> PythonValues:
        raise _per_rank(op)

    def _distributed(self, op: Operation, value: Any) -> Sharded:
        if not isinstance(value, Sharded):
            raise _per_rank(op)
        return value

    @staticmethod
    def _result(op: CollectiveOp, value: Sharded) -> OpImplResult:
        value.check(describe(op))
        return OpImplResult((value,), None)


def _per_rank(op: Operation) -> DistIRError:
    return DistIRError(
        f"{describe(op)} belongs to the program of one rank, which cannot run alone; "
        "interpret the distributed program, or run it with `distir run`"
    )
