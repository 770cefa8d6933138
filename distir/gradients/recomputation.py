"""Recomputes ops of a forward in its backward."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.func import CallOp
from xdsl.ir import Block, Operation, SSAValue

from distir.dialects.dist_attributes import RECOMPUTE


def recompute_marked(ops: Sequence[Operation], body: Block) -> None:
    """
    Makes a backward, which still uses values of its forward, recompute the results of ops
    that are marked `dist.recompute` (`ops` are the forward's). It then needs their operands
    instead. The marks are removed.
    """
    marked = {
        op for op in ops if RECOMPUTE in op.attributes and not isinstance(op, CallOp)
    }
    if not marked or body.first_op is None:
        return
    for op in marked:
        del op.attributes[RECOMPUTE]
    first, known = body.first_op, dict[SSAValue, SSAValue]()
    used = {value for op in body.ops for value in op.operands}
    wanted: set[Operation] = set()
    for op in reversed(ops):
        if op in marked and any(result in used for result in op.results):
            wanted.add(op)
            used.update(op.operands)
    backward = list(body.ops)
    for op in ops:
        if op in wanted:
            copy = op.clone(known)
            body.insert_op_before(copy, first)
            known.update(zip(op.results, copy.results, strict=True))
    for op in backward:
        op.operands = [known.get(value, value) for value in op.operands]
