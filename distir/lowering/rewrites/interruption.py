"""
Interrupts a rank's program between its forward and its backward, where its caller computes
the loss.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from distir.dialects.dist_attributes import GRADIENT_OF
from distir.dialects.torch import AwaitGradientsOp
from distir.program import (
    argument_attributes,
    entry_function,
    result_attributes,
    return_op,
    set_results,
)


def await_gradients(module: ModuleOp) -> None:
    """
    Makes a per-rank program give those results that depend on no gradient of a result
    before it takes these gradients (`dist.gradient_of`), by a `torch.await_gradients`
    right before their first use. What computes the results is moved in front of it, in its
    order, so that all ranks communicate in one order. Other programs are left unchanged.
    """
    entry = entry_function(module)
    block = entry.body.block
    awaited = {
        argument.index: argument
        for argument, own in zip(block.args, argument_attributes(entry), strict=True)
        if GRADIENT_OF in own
    }
    if not awaited or any(isinstance(op, AwaitGradientsOp) for op in block.ops):
        return
    returned = return_op(entry)
    late: set[SSAValue] = set(awaited.values())
    first: Operation = returned
    for op in block.ops:
        if op is not returned and any(value in late for value in op.operands):
            first = op if first is returned else first
            late.update(op.results)
    values, attributes = list(returned.operands), result_attributes(entry)
    given = {i: v for i, v in enumerate(values) if v not in late}
    _move_before(first, list(given.values()))
    await_op = AwaitGradientsOp(given, awaited)
    block.insert_op_before(await_op, first)
    for argument, gradient in zip(awaited.values(), await_op.outputs, strict=True):
        gradient.name_hint = argument.name_hint
        argument.replace_all_uses_with(gradient)
    kept = [i for i in range(len(values)) if i not in given]
    set_results(
        entry,
        [return_op(entry).operands[i] for i in kept],
        [attributes[i] for i in kept],
    )


def _move_before(first: Operation, values: list[SSAValue]) -> None:
    """
    Moves the ops behind `first`, on which `values` depend, before it. None of them depends
    on a result of `first`.
    """
    needed = set(values)
    behind: list[Operation] = []
    op = first.parent_block().last_op  # pyright: ignore[reportOptionalMemberAccess]
    while op is not None and op is not first:
        if any(result in needed for result in op.results):
            needed.update(op.operands)
            behind.append(op)
        op = op.prev_op
    for op in reversed(behind):
        op.detach()
        block = first.parent_block()
        assert block is not None
        block.insert_op_before(op, first)
