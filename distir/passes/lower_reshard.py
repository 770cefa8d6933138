"""`lower-reshard`: abstract layout changes become collectives and sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects import collective, dist
from distir.dialects.dist import SCOPE, Layout, layout_of, with_layout
from distir.errors import DistIRError
from distir.passes.options import DistIRPass
from distir.program import functions
from distir.sharding.layout import local_shape
from distir.sharding.mesh import Mesh, meshes
from distir.sharding.reshard import Step, plan_reshard

_COLLECTIVES: Mapping[str, type[collective.CollectiveOp]] = {
    "all_reduce": collective.AllReduceOp,
    "all_gather": collective.AllGatherOp,
    "reduce_scatter": collective.ReduceScatterOp,
    "all_to_all": collective.AllToAllOp,
    "slice": collective.SliceOp,
}


def plan_between_meshes(
    before: Layout, after: Layout, shape: tuple[int, ...], known: Mapping[str, Mesh]
) -> list[Step]:
    """
    The steps of a reshard, with a send where it leaves its mesh: on the side where the
    value is smaller per device.
    """
    for layout in (before, after):
        if layout.mesh not in known:
            raise DistIRError(f"dist.reshard: there is no device.mesh @{layout.mesh}")
    source, target = known[before.mesh], known[after.mesh]
    if before.mesh == after.mesh:
        return plan_reshard(before, after, shape, source)
    if source.axes != target.axes:
        raise DistIRError(
            f"dist.reshard from mesh @{source.name} to @{target.name}: a value moves "
            f"between meshes with the same axes only; these have {dict(source.axes)} "
            f"and {dict(target.axes)}"
        )
    size_before = prod(local_shape(shape, before, source))
    size_after = prod(local_shape(shape, after, target))
    if before.partial or size_after < size_before:
        there = replace(after, mesh=before.mesh)
        steps = plan_reshard(before, there, shape, source)
        return [*steps, Step("send", (), after)]
    here = replace(before, mesh=after.mesh)
    return [Step("send", (), here), *plan_reshard(here, after, shape, target)]


def expand(
    source: SSAValue, after: Layout, known: Mapping[str, Mesh]
) -> list[Operation]:
    """The ops that bring a distributed value to a layout; none if it has it."""
    type_, before = source.type, layout_of(source)
    if not isinstance(type_, TensorType) or before is None:
        raise DistIRError(f"dist.reshard: {source.type} has no layout to start from")
    ops: list[Operation] = []
    for step in plan_between_meshes(before, after, type_.get_shape(), known):
        ops.append(op_of_step(source, step))
        source = ops[-1].results[0]
    return ops


def op_of_step(source: SSAValue, step: Step) -> Operation:
    """The collective or send that takes a distributed value one step further."""
    assert isinstance(source.type, TensorType)
    result_type = with_layout(source.type, step.layout)
    if step.kind == "send":
        return dist.SendOp(source, result_type)
    return _COLLECTIVES[step.kind](source, step.axes, result_type)


def lower_reshard(op: dist.ReshardOp, known: Mapping[str, Mesh]) -> None:
    """Replaces a `dist.reshard` by the cheapest chain of collectives and sends."""
    after = layout_of(op.result)
    assert after is not None
    ops = expand(op.source, after, known)
    for new_op in ops:
        if SCOPE in op.attributes:
            new_op.attributes[SCOPE] = op.attributes[SCOPE]
    Rewriter.replace_op(op, ops, [ops[-1].results[0] if ops else op.source])


@dataclass(frozen=True)
class LowerReshardPass(DistIRPass):
    """
    Expands every `dist.reshard`. Which collectives are cheapest is decided by
    `distir.sharding.reshard`, from the bytes that each device has to send.
    """

    name = "lower-reshard"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        known = meshes(op)
        found = [
            inner
            for function in functions(op).values()
            for block in function.body.blocks
            for inner in block.ops
            if isinstance(inner, dist.ReshardOp)
        ]
        for reshard in found:
            lower_reshard(reshard, known)
