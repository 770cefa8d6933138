"""
Collectives with a root: one device that has the whole operand or gets the whole result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from xdsl.ir import SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    opt_prop_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.collective_ops.base import (
    I64,
    CollectiveOp,
    Traffic,
)
from distir.dialects.dist import Layout, layout_of


class RootedOp(CollectiveOp):
    """
    Base of the collectives with a root.

    The root is a mesh without axes (one device), and the other side is a mesh that
    contains it. In per-rank form, `root` is the root's global rank; if it is absent,
    the root is the first rank of the group. Ranks other than the root ignore the
    operand of a broadcast or scatter, and must not use the result of a reduce or
    gather.
    """

    root = opt_prop_def(I64)

    FROM_ROOT: ClassVar[bool] = False
    """Whether the root holds the operand; else it gets the result."""


@irdl_op_definition
class BroadcastOp(RootedOp):
    """Copies a value from one device to every device of a mesh."""

    name = "collective.broadcast"
    FROM_ROOT: ClassVar[bool] = True
    TRAFFIC: ClassVar[Traffic | None] = Traffic("chain")

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        return [replace(_on_root(self, before), mesh=_other_mesh(self.result, before))]


@irdl_op_definition
class ScatterOp(RootedOp):
    """Sends each device of a mesh its shard of a value that one device holds."""

    name = "collective.scatter"
    FROM_ROOT: ClassVar[bool] = True
    TRAFFIC: ClassVar[Traffic | None] = Traffic("parts")
    NEEDED: ClassVar[tuple[str, ...]] = ("dim",)

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        mesh = _other_mesh(self.result, before)
        return self._splits(replace(_on_root(self, before), mesh=mesh), rank)


@irdl_op_definition
class ReduceOp(RootedOp):
    """Reduces the partial values of a mesh's devices onto one device."""

    name = "collective.reduce"
    REDUCES: ClassVar[bool] = True
    TRAFFIC: ClassVar[Traffic | None] = Traffic("chain")
    NEEDED: ClassVar[tuple[str, ...]] = ("reduction",)

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        self._require_partial(before)
        reduced = before.without_partial(self.axis_names)
        return [replace(reduced, mesh=_other_mesh(self.result, before))]


@irdl_op_definition
class GatherOp(RootedOp):
    """
    Collects on one device the shards of a tensor that a mesh splits along one
    dimension.
    """

    name = "collective.gather"
    TRAFFIC: ClassVar[Traffic | None] = Traffic("parts")
    NEEDED: ClassVar[tuple[str, ...]] = ("dim",)

    def expect(self, before: Layout, rank: int) -> Sequence[Layout]:
        n = len(self.axis_names)
        mesh = _other_mesh(self.result, before)
        return [
            replace(before.with_dim(i, before.dim(i)[:-n], rank), mesh=mesh)
            for i in self._ending_dims(before, rank)
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
