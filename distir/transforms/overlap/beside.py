"""
Moves gathers of activations before a contraction that does not need them.

With sequence parallelism, what a forward keeps in parts for the backward is there long
before it is used. A gather that starts before the last contraction in front of its use
completes while that one is computed, and leaves the links free for what follows.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.func import CallOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from distir.dialects.collective_ops.over_axes import AllGatherOp
from distir.dialects.onnx_ops.traits import VIEWS
from distir.sharding.rule import rule_for
from distir.transforms.overlap.kinds import kind_of

FREE = VIEWS | {"onnx.Constant"}
"""The names of ops that take no time."""


def gathered_beside_contractions(ops: Sequence[Operation]) -> list[Operation]:
    """Returns the ops in an order in which gathers of activations start that early."""
    found = list(ops)
    for op in ops:
        if isinstance(op, AllGatherOp) and kind_of(op) == "tp":
            _move(found, op)
    return found


def _move(ops: list[Operation], gather: AllGatherOp) -> None:
    """
    Moves a gather, with the views that lead to it, before the last contraction in front of
    it, but not across calls or another op that computes its operand.
    """
    place = {op: i for i, op in enumerate(ops)}
    here = place[gather]
    for there in range(here - 1, -1, -1):
        if isinstance(ops[there], CallOp):
            return
        if rule_for(ops[there]).flops:
            break
    else:
        return
    moved: set[Operation] = {gather}
    pending: list[SSAValue] = [gather.source]
    while pending:
        value = pending.pop()
        owner = value.owner
        if isinstance(value, BlockArgument) or not isinstance(owner, Operation):
            continue
        if place[owner] < there or owner in moved:
            continue
        if not FREE.of(owner):
            return
        moved.add(owner)
        pending += owner.operands
    chain = [op for op in ops[there : here + 1] if op in moved]
    rest = [op for op in ops[there : here + 1] if op not in moved]
    ops[there : here + 1] = [*chain, *rest]
