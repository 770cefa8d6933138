"""
Interrupts a rank's program between its forward and its backward pass, where the caller
computes the loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.dialects.builtin import IntegerAttr, ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument, Operation, SSAValue
from xdsl.rewriter import Rewriter

from distir.dialects.dist_attributes import GRADIENT_OF, MICRO_BATCHES
from distir.dialects.torch import AwaitGradientsOp
from distir.errors import DistIRError
from distir.program import (
    argument_attributes,
    describe,
    entry_function,
    forward_results,
    result_attributes,
    return_op,
    set_results,
)


def await_gradients(module: ModuleOp) -> None:
    """
    Inserts `torch.await_gradients` ops into a per-rank program that takes gradients of
    its results as arguments (`dist.gradient_of`). Each op returns results to the caller
    right before the first use of the gradients, and waits for the gradients.

    In a program over micro-batches, there is one op for each micro-batch, which returns
    the outputs of that micro-batch before its backward pass. In other programs, one op
    returns all results that depend on no such gradient. Ops that compute the returned
    results move in front of the new op and keep their order, so that all ranks
    communicate in the same order. Programs without such arguments are left unchanged.
    Raises DistIRError if an output does not consist of parts for the micro-batches, or
    if the schedule runs the backward passes of micro-batches out of order.
    """
    entry = entry_function(module)
    block = entry.body.block
    attributes = argument_attributes(entry)
    awaited = {a.index: a for a in block.args if GRADIENT_OF in attributes[a.index]}
    if not awaited or any(isinstance(op, AwaitGradientsOp) for op in block.ops):
        return
    (count,) = {MICRO_BATCHES.of(attributes[i]) for i in awaited}
    if count is None:
        given = _for_the_batch(entry, awaited)
    else:
        given = _for_each_part(entry, awaited, count)
    results = result_attributes(entry)
    kept = [i for i in range(len(results)) if i not in given]
    values = return_op(entry).operands
    set_results(entry, [values[i] for i in kept], [results[i] for i in kept])


def _for_the_batch(entry: FuncOp, awaited: dict[int, BlockArgument]) -> Iterable[int]:
    """
    Adds one `torch.await_gradients` to a program over a whole batch. Returns the
    indices of the results that the op returns.
    """
    values = list(return_op(entry).operands)
    late: set[SSAValue] = set(awaited.values())
    first: Operation = return_op(entry)
    for op in entry.body.block.ops:
        if op is not return_op(entry) and any(value in late for value in op.operands):
            first = op if first is return_op(entry) else first
            late.update(op.results)
    given = {i: value for i, value in enumerate(values) if value not in late}
    gradients = _insert(AwaitGradientsOp(given, awaited), first)
    for argument, gradient in zip(awaited.values(), gradients, strict=True):
        gradient.name_hint = argument.name_hint
        argument.replace_all_uses_with(gradient)
    return given


def _for_each_part(
    entry: FuncOp, awaited: dict[int, BlockArgument], count: int
) -> Iterable[int]:
    """
    Adds an op for each of `count` micro-batches. Returns the indices of the results
    that the ops return. Raises DistIRError if an output does not consist of `count`
    parts, or if the backward passes of micro-batches are out of order.
    """
    values = list(return_op(entry).operands)
    outputs = {i: values[i].owner for i in forward_results(entry)}
    splits = [use.operation for a in awaited.values() for use in a.uses]
    for op in (*splits, *outputs.values()):
        if not isinstance(op, Operation) or not _has_parts(op, count):
            what = describe(op) if isinstance(op, Operation) else "an argument"
            raise DistIRError(
                f"await-gradients: an output or its gradient ({what}) does not consist of "
                f"{count} parts for the micro-batches along its first dimension, so that no "
                f"loss of one of them can be computed; use one micro-batch (k=1), or leave "
                f"this output out"
            )
    ops = {op: place for place, op in enumerate(entry.body.block.ops)}
    before = -1
    for part in range(count):
        parts = [op.results[part] for op in splits]
        users = [use.operation for value in parts for use in value.uses]
        first = min(users, key=ops.__getitem__)
        if ops[first] <= before:
            raise DistIRError(
                f"await-gradients: the schedule comes to the backward of micro-batch {part} "
                f"before that of the one before it; choose another schedule"
            )
        before = ops[first]
        given = {
            i: op.operands[part]
            for i, op in outputs.items()
            if isinstance(op, Operation)
        }
        made = AwaitGradientsOp(given, dict(zip(awaited, parts, strict=True)), part)
        for value, gradient in zip(parts, _insert(made, first), strict=True):
            gradient.name_hint = value.name_hint
            value.replace_all_uses_with(gradient)
    for op in splits:
        Rewriter.erase_op(op)
    return outputs


def _has_parts(op: Operation, count: int) -> bool:
    """
    Whether an op splits or concatenates `count` micro-batches along the first
    dimension.
    """
    axis = op.properties.get("axis")
    if isinstance(axis, IntegerAttr) and axis.value.data:
        return False
    if op.name == "onnx.Split":
        return len(op.results) == count
    return op.name == "onnx.Concat" and len(op.operands) == count


def _insert(await_op: AwaitGradientsOp, first: Operation) -> Sequence[SSAValue]:
    """
    Inserts `await_op` before `first`, and returns its results. Later ops that compute
    operands of `await_op` move in front of it.
    """
    block = first.parent_block()
    assert block is not None
    needed = set(await_op.inputs)
    behind: list[Operation] = []
    op = block.last_op
    while op is not None and op is not first:
        if any(result in needed for result in op.results):
            needed.update(op.operands)
            behind.append(op)
        op = op.prev_op
    for op in reversed(behind):
        op.detach()
        block.insert_op_before(op, first)
    block.insert_op_before(await_op, first)
    return await_op.outputs
