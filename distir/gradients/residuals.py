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


def _first_uses(
    block: Block, body: Block, prepared: set[Operation]
) -> dict[SSAValue, Operation]:
    """
    Returns the values of a forward `block` that its backward needs, directly or to compute
    the results of `prepared` ops again, each with the op of the backward's `body` before
    which it has to be there.
    """
    place = {op: i for i, op in enumerate(body.ops)}
    found: dict[SSAValue, Operation] = {}
    for op in body.ops:
        for value in op.operands:
            if _block_of(value) is block:
                found.setdefault(value, op)
    for op in reversed(list(block.ops)):
        used = [r for r in op.results if r in found]
        if op in prepared and used:
            first = min((found[r] for r in used), key=place.__getitem__)
            found |= dict.fromkeys(used, first)
            for value in op.operands:
                before = found.get(value, first)
                found[value] = min(first, before, key=place.__getitem__)
    return found


def split_residuals(forward: FuncOp, body: Block) -> Saved:
    """
    Replaces the backward's uses of forward values. Constants and prepared parameters are
    computed again, each right before its first use; everything else becomes a block
    argument of the backward, in front of the gradients. Returns these values.
    """
    block = forward.body.block
    saved = Saved()
    prepared = _prepared(forward)
    needed = _first_uses(block, body, prepared)
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
            body.insert_op_before(copy, needed[used[0]])
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
