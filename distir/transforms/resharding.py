"""Replaces `dist.reshard` by collectives and sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import NamedTuple

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects import dist
from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.collective_ops.over_axes import (
    AllGatherOp,
    AllReduceOp,
    AllToAllOp,
    RaggedAllToAllOp,
    ReduceScatterOp,
    SliceOp,
)
from distir.dialects.dist import Layout, layout_of, with_layout
from distir.dialects.dist_attributes import SCOPE
from distir.errors import DistIRError
from distir.program import functions
from distir.sharding.layout import local_shape
from distir.sharding.mesh import Mesh, meshes
from distir.sharding.reshard import ReshardStep, plan_reshard

_COLLECTIVES: Mapping[str, type[CollectiveOp]] = {
    "all_reduce": AllReduceOp,
    "all_gather": AllGatherOp,
    "reduce_scatter": ReduceScatterOp,
    "all_to_all": AllToAllOp,
    "slice": SliceOp,
}


def plan_between_meshes(
    before: Layout, after: Layout, shape: tuple[int, ...], known: Mapping[str, Mesh]
) -> list[ReshardStep]:
    """
    Returns the steps of a reshard, including a send if the two layouts are on different
    meshes. Between meshes with the same axes, the send happens where the value is
    smaller per device. Between meshes with different axes, a partial value is reduced
    first, and the send itself changes the layout.
    """
    for layout in (before, after):
        if layout.mesh not in known:
            raise DistIRError(f"dist.reshard: there is no device.mesh @{layout.mesh}")
    source, target = known[before.mesh], known[after.mesh]
    if before.mesh == after.mesh:
        return plan_reshard(before, after, shape, source)
    if source.axes != target.axes:
        reduced = before.without_partial(before.partial_axes)
        steps = plan_reshard(before, reduced, shape, source)
        return [*steps, ReshardStep("send", (), after)]
    size_before = prod(local_shape(shape, before, source))
    size_after = prod(local_shape(shape, after, target))
    if before.partial or size_after < size_before:
        there = replace(after, mesh=before.mesh)
        steps = plan_reshard(before, there, shape, source)
        return [*steps, ReshardStep("send", (), after)]
    here = replace(before, mesh=after.mesh)
    return [ReshardStep("send", (), here), *plan_reshard(here, after, shape, target)]


def op_of_step(source: SSAValue, step: ReshardStep) -> Operation:
    """Returns the collective or the send for one step of a reshard of `source`."""
    assert isinstance(source.type, TensorType)
    result_type = with_layout(source.type, step.layout)
    if step.kind == "send":
        return dist.SendOp(source, result_type)
    return _COLLECTIVES[step.kind](source, step.axes, result_type)


class _Plan(NamedTuple):
    """The steps of a reshard between two types."""

    types: tuple[Attribute, Attribute]
    steps: list[ReshardStep]


class ReshardLowering:
    """
    Replaces each `dist.reshard` by the cheapest chain of collectives and sends. `known`
    maps names to the meshes of the program.
    """

    def __init__(self, known: Mapping[str, Mesh]):
        self.known = known
        # By the ids of the types before and after, which recur; the types are kept alive,
        # as ids of dead objects are reused.
        self._plans: dict[tuple[int, int], _Plan] = {}

    def lower(self, function: FuncOp) -> None:
        """
        Replaces the reshards in a function. Raises DistIRError if a reshard is not
        possible.
        """
        found = [op for block in function.body.blocks for op in block.ops]
        for op in found:
            if type(op) is dist.ReshardOp:
                ops = self.ops(op)
                value = ops[-1].results[0] if ops else op.source
                Rewriter.replace_op(op, ops, [value])

    def ops(self, op: dist.ReshardOp) -> list[Operation]:
        """
        Returns the ops that replace a reshard. The last op computes the result of the
        reshard. The list is empty if the layout does not change. Raises DistIRError if
        the reshard is not possible.
        """
        ops: list[Operation] = []
        value: SSAValue = op.source
        steps = self._plan(op)
        for step in steps:
            ops.append(op_of_step(value, step))
            if len(steps) == 1 and op.taken and isinstance(ops[0], AllToAllOp):
                ops = [RaggedAllToAllOp.of(ops[0], op.rows, op.taken)]
            value = ops[-1].results[0]
            if SCOPE in op.attributes:
                ops[-1].attributes[SCOPE] = op.attributes[SCOPE]
        return ops

    def _plan(self, op: dist.ReshardOp) -> list[ReshardStep]:
        type_ = op.source.type
        key = id(type_), id(op.result.type)
        if key not in self._plans:
            before, after = layout_of(type_), layout_of(op.result)
            if not isinstance(type_, TensorType) or before is None or after is None:
                raise DistIRError(f"dist.reshard: {type_} has no layout to start from")
            steps = plan_between_meshes(before, after, type_.get_shape(), self.known)
            self._plans[key] = _Plan((type_, op.result.type), steps)
        return self._plans[key].steps


def lower_reshards(module: ModuleOp) -> None:
    """
    Replaces every `dist.reshard` of a program by collectives and sends, in place.
    Raises DistIRError if a reshard is not possible.
    """
    lowering = ReshardLowering(meshes(module))
    for function in functions(module).values():
        lowering.lower(function)
