"""
Computes values of the whole batch before all micro-batches. This concerns values that
depend on inputs only and that ops need for each micro-batch.
"""

from __future__ import annotations

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import ReshardOp
from distir.dialects.dist_attributes import GRADIENT_OF
from distir.program import argument_attributes, argument_roles, made_with
from distir.sharding.mesh import Mesh
from distir.sharding.placement import REPLICATED, SplitPlacement
from distir.transforms.pipelines.over_time import (
    gathers_micro_batches,
    over_time,
    whole_type,
    works_on_parts,
)

LEARNED = ("parameter", "state")


def hoist_inputs(function: FuncOp, mesh: Mesh) -> bool:
    """
    Computes values of the whole batch from whole inputs, before all micro-batches. An
    example is the number of labels by which a loss divides. A value is moved if it
    combines all micro-batches, if an op that runs per micro-batch needs it, and if it
    depends on inputs and labels but not on parameters. Returns whether any value was
    moved.
    """
    ops = list(function.body.block.ops)
    given = _given(function)
    wanted: set[SSAValue] = set()
    for op in reversed(ops):
        if works_on_parts(op) or any(r in wanted for r in op.results):
            wanted.update(
                v for v in op.operands if not isinstance(over_time(v), SplitPlacement)
            )
    whole: dict[SSAValue, SSAValue] = {}
    for op in ops:
        if (
            gathers_micro_batches(op)
            and not isinstance(op.operands[0], BlockArgument)
            and op.operands[0] in given
            and op.results[0] in wanted
        ):
            source = _computed_whole(op.operands[0], whole, op, mesh)
            op.operands[0] = source
            if source.type == op.results[0].type:
                op.results[0].replace_all_uses_with(source)
                Rewriter.erase_op(op)
    return bool(whole)


def _given(function: FuncOp) -> set[SSAValue]:
    """
    Returns the values that depend only on inputs, labels and constants. They can be
    computed before all micro-batches.
    """
    block = function.body.block
    roles, attributes = argument_roles(function), argument_attributes(function)
    found: set[SSAValue] = {
        arg
        for arg, role, own in zip(block.args, roles, attributes, strict=True)
        if role not in LEARNED and GRADIENT_OF not in own
    }
    for op in block.ops:
        if not isinstance(op, CallOp) and all(v in found for v in op.operands):
            found.update(op.results)
    return found


def _computed_whole(
    value: SSAValue, whole: dict[SSAValue, SSAValue], user: Operation, mesh: Mesh
) -> SSAValue:
    """
    Returns `value` for all micro-batches together, computed before `user` from whole
    inputs.
    """
    pending = [value]
    while pending:
        current = pending[-1]
        if current in whole or over_time(current) is REPLICATED:
            whole.setdefault(current, current)
            pending.pop()
            continue
        owner = current.owner
        if not isinstance(owner, Operation):
            gather = ReshardOp(current, whole_type(current.type, mesh, mesh.name))  # type: ignore[arg-type]
            Rewriter.insert_op(gather, InsertPoint.before(user))
            whole[current] = gather.result
            continue
        missing = [v for v in owner.operands if v not in whole]
        if missing:
            pending += missing
            continue
        copy = made_with(
            owner,
            [whole[v] for v in owner.operands],
            [whole_type(r.type, mesh, mesh.name) for r in owner.results],
        )
        Rewriter.insert_op(copy, InsertPoint.before(user))
        for old, new in zip(owner.results, copy.results, strict=True):
            new.name_hint = old.name_hint
            whole[old] = new
    return whole[value]
