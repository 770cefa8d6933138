"""Finds what a function's backward needs of its forward."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Block, Operation, SSAValue

from distir.program import argument_roles


@dataclass
class Saved:
    """
    The values of a forward body that its backward uses: arguments by index, then others in
    program order.
    """

    arguments: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    others: list[SSAValue] = field(default_factory=list[SSAValue])


def _prepared(forward: FuncOp) -> set[Operation]:
    """
    Returns the ops that only prepare parameters and constants (transposed, cast weights).
    """
    roles = argument_roles(forward)
    block = forward.body.block
    given: set[SSAValue] = {
        arg
        for arg, role in zip(block.args, roles, strict=True)
        if role in ("parameter", "constant")
    }
    found: set[Operation] = set()
    for op in block.ops:
        if isinstance(op, CallOp | ReturnOp) or not all(
            v in given for v in op.operands
        ):
            continue
        given.update(op.results)
        found.add(op)
    return found


def split_residuals(forward: FuncOp, body: Block) -> Saved:
    """
    Replaces the backward's uses of forward values. Constants and prepared parameters are
    computed again, each right before its first use; everything else becomes a block
    argument of the backward, in front of the gradients. Returns these values.
    """
    block = forward.body.block
    saved = Saved()
    order = {op: place for place, op in enumerate(body.ops)}
    needed: set[SSAValue] = set()
    # By an op of the forward, the backward's first op that uses a result of it.
    user: dict[Operation, Operation] = {}
    for op in body.ops:
        for v in op.operands:
            if _block_of(v) is block:
                needed.add(v)
                if isinstance(v.owner, Operation):
                    user.setdefault(v.owner, op)
    prepared = _prepared(forward)
    for op in reversed(list(block.ops)):
        if op in prepared and op in user:
            needed.update(op.operands)
            for before in {
                v.owner for v in op.operands if isinstance(v.owner, Operation)
            }:
                user[before] = min(
                    user[op], user.get(before, user[op]), key=order.__getitem__
                )
    replaced: dict[SSAValue, SSAValue] = {}
    count = 0

    def argument(value: SSAValue) -> None:
        nonlocal count
        replaced[value] = body.insert_arg(value.type, count)
        replaced[value].name_hint = value.name_hint
        count += 1

    for arg in block.args:
        if arg in needed:
            saved.arguments[arg] = arg.index
            argument(arg)
    for op in block.ops:
        used = [r for r in op.results if r in needed]
        if used and op in prepared:
            copy = op.clone({v: replaced[v] for v in op.operands})
            body.insert_op_before(copy, user[op])
            replaced |= zip(op.results, copy.results, strict=True)
            continue
        for result in used:
            saved.others.append(result)
            argument(result)
    for op in body.ops:
        for i, value in enumerate(op.operands):
            if value in replaced:
                op.operands[i] = replaced[value]
    return saved


def _block_of(value: SSAValue) -> Block | None:
    owner = value.owner
    return owner if isinstance(owner, Block) else owner.parent_block()
