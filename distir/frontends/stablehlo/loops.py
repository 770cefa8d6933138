"""
Converts loops with a known number of iterations, such as `jax.lax.scan`, by unrolling.

The counter is known in each iteration, and so is the row of a tensor that the iteration
reads or writes. The computation of an iteration is a call of a function that all
iterations share. A row that one loop writes and another reads is passed on directly,
without forming a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue

from distir.frontends.stablehlo.assembly import op_name
from distir.frontends.stablehlo.registry import (
    ModuleConversion,
    UnsupportedError,
    Values,
)
from distir.frontends.stablehlo.tensors import LazyTensor

MAX_ROUNDS = 4096
"""The most iterations of a loop. Each becomes part of the program."""

FEW = 8
"""The most elements of a known tensor that stays known from iteration to iteration."""

PLUMBING = frozenset(
    f"stablehlo.{name}"
    for name in [
        "add",
        "broadcast_in_dim",
        "compare",
        "constant",
        "convert",
        "dynamic_slice",
        "dynamic_update_slice",
        "reshape",
        "return",
        "select",
        "slice",
        "subtract",
    ]
) | {"func.return", "func.call"}
"""The ops of functions that only read or replace a row."""


def convert_loop(
    converter: ModuleConversion,
    op: Operation,
    operands: Sequence[LazyTensor],
    outer: Values,
) -> list[LazyTensor]:
    """
    Unrolls the loop `op` and returns the loop's results. `outer` are the values from
    outside of the loop that its regions may use. Raises UnsupportedError if the number
    of iterations is unknown, or is above `MAX_ROUNDS`.
    """
    condition, body = (region.block for region in op.regions)
    carried = _carried(converter, body)
    state = [
        _written(converter, operand) if i in carried else operand
        for i, operand in enumerate(operands)
    ]
    scope = converter.build.scope
    for _ in range(MAX_ROUNDS):
        [goes_on] = converter.block(condition, state, outer)
        if goes_on.scalar is None:
            raise UnsupportedError(
                "its number of rounds depends on values that are known only when it runs"
            )
        if not goes_on.scalar:
            return state
        converter.build.scope = scope
        state = _round(converter, body, state, outer)
        state = [
            _written(converter, tensor) if i in carried else tensor
            for i, tensor in enumerate(state)
        ]
    raise UnsupportedError(f"it has more than {MAX_ROUNDS} rounds")


def _written(converter: ModuleConversion, tensor: LazyTensor) -> LazyTensor:
    """
    Returns a tensor stored as one value with its full shape, so that the function of an
    iteration gets an operand of the same form in all iterations. Integers without
    dimensions, such as counters, stay known, and so do a few known unsigned integers,
    such as the rotations of random numbers.
    """
    if not tensor.shape and not isinstance(tensor.element, AnyFloat):
        return tensor
    array = tensor.array
    if array is not None and array.dtype == np.uint32 and array.size <= FEW:
        return tensor
    return LazyTensor.of(converter.build.whole(tensor))


def _round(
    converter: ModuleConversion, body: Block, state: Sequence[LazyTensor], outer: Values
) -> list[LazyTensor]:
    """
    Converts one iteration and returns the new values of the loop. A call of a function
    that only reads or replaces rows is inlined; a call of any other function stays a
    call.
    """
    values = dict(outer)
    values.update(zip(body.args, state, strict=True))
    last = body.last_op
    assert last is not None
    for op in body.ops:
        if op is last:
            break
        if op_name(op) == "func.call" and not _is_plumbing(converter, op):
            operands = [values[value] for value in op.operands]
            results = converter.call(converter.callee(op), operands)
            values.update(zip(op.results, results, strict=True))
        else:
            converter.op(op, values)
    return [values[value] for value in last.operands]


def _is_plumbing(converter: ModuleConversion, call: Operation) -> bool:
    """Whether the function that `call` calls only reads or replaces rows."""
    return all(
        op_name(op) in PLUMBING
        and (op_name(op) != "func.call" or _is_plumbing(converter, op))
        for op in converter.callee(call).body.block.ops
    )


def _carried(converter: ModuleConversion, body: Block) -> set[int]:
    """
    Returns the positions of the loop's values that each iteration replaces as a whole.
    Leaves out values that stay the same, and tensors in which an iteration replaces
    only a part.
    """
    last = body.last_op
    assert last is not None
    found: set[int] = set()
    for index, value in enumerate(last.operands):
        same = isinstance(value, BlockArgument) and value.index == index
        if not same and not _replaces_row(converter, value):
            found.add(index)
    return found


def _replaces_row(converter: ModuleConversion, value: SSAValue) -> bool:
    """Whether `value` is the result of replacing a part of a tensor."""
    if not isinstance(value, OpResult):
        return False
    if op_name(value.owner) == "func.call":
        last = converter.callee(value.owner).body.block.last_op
        assert last is not None
        return _replaces_row(converter, last.operands[value.index])
    return op_name(value.owner) == "stablehlo.dynamic_update_slice"
