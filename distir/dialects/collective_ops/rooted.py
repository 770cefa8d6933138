"""
Collectives with a root: one device that has the whole operand or gets the whole result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition
from xdsl.utils.exceptions import VerifyException

from distir.dialects.collective_ops import kinds
from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.distributed import InDistributedForm
from distir.dialects.dist import Layout, layout_of


class RootedOp(InDistributedForm, kinds.Rooted):
    """
    Base of the collectives with a root: one device that has the whole operand or gets
    the whole result.
    """


@irdl_op_definition
class BroadcastOp(RootedOp, kinds.Broadcast):
    """Copies a value from one device to every device of a mesh."""

    name = "collective.broadcast"

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        return [replace(_on_root(self, before), mesh=_other_mesh(self.result, before))]


@irdl_op_definition
class ScatterOp(RootedOp, kinds.Scatter):
    """Sends each device of a mesh its shard of a value that one device holds."""

    name = "collective.scatter"

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        mesh = _other_mesh(self.result, before)
        return self.splits(replace(_on_root(self, before), mesh=mesh), rank)


@irdl_op_definition
class ReduceOp(RootedOp, kinds.Reduce):
    """Reduces the partial values of a mesh's devices onto one device."""

    name = "collective.reduce"

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        self.require_partial(before)
        reduced = before.without_partial(self.axis_names)
        return [replace(reduced, mesh=_other_mesh(self.result, before))]


@irdl_op_definition
class GatherOp(RootedOp, kinds.Gather):
    """
    Collects on one device the shards of a tensor that a mesh splits along one
    dimension.
    """

    name = "collective.gather"

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        n = len(self.axis_names)
        mesh = _other_mesh(self.result, before)
        return [
            replace(before.with_dim(i, before.dim(i)[:-n], rank), mesh=mesh)
            for i in self.ending_dims(before, rank)
        ]


def _on_root(op: CollectiveOp, before: Layout) -> Layout:
    if before.dims or before.partial:
        raise VerifyException(
            f"{op.name}: expected a whole value on one device, got {before}"
        )
    return before


def _other_mesh(result: SSAValue, before: Layout) -> str:
    after = layout_of(result)
    if after is None or after.mesh == before.mesh:
        raise VerifyException(
            f"a collective with a root must change the mesh from @{before.mesh}"
        )
    return after.mesh
