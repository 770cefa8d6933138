"""
Finds the ops of a function that are tied: they share one strategy.

Calls of one function do the same work on different values, so these calls may share
decisions. The first calls and the last calls have their own decisions. The calls
between them alternate between two sets of decisions, so that neighbours can differ. Ops
that belong to one call each, such as updates of its parameters, are tied if they differ
only in the call that their operands come from. Ops that are unrelated to repeated calls
keep their own strategy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue


def call_kinds(function: FuncOp, *, ends: int | None) -> dict[CallOp, Hashable]:
    """
    Returns the kind of each call of a function. Calls of one kind share all decisions.
    Each of the first `ends` and of the last `ends` calls of a callee has its own kind.
    The calls between them alternate between two kinds. If `ends` is None, every call
    has its own kind.
    """
    calls: dict[str, list[CallOp]] = {}
    for op in function.body.block.ops:
        if type(op) is CallOp:
            calls.setdefault(op.callee.string_value(), []).append(op)
    kinds: dict[CallOp, Hashable] = {}
    for name, same in calls.items():
        last = len(same) - (ends or 0)
        for place, call in enumerate(same):
            kind: Hashable = place
            if ends is not None and ends <= place < last:
                kind = "even" if place % 2 == 0 else "odd"
            kinds[call] = (name, kind)
    return kinds


def op_kinds(
    function: FuncOp,
    calls: Mapping[CallOp, Hashable],
    alike: Callable[[Operation], Hashable],
) -> dict[Operation, Hashable]:
    """
    Returns the kind of every op of a function. Ops of one kind share all decisions.
    `calls` gives the kind of each call. `alike` returns a key for an op that is not a
    call: ops with equal keys could follow the same strategy if their operands came from
    the same places.
    """
    sizes = Counter(calls.values())
    kinds: dict[Operation, Hashable] = {}
    arguments = _argument_kinds(function, calls)
    tied: set[Operation] = set()
    for op in function.body.block.ops:
        if type(op) is CallOp:
            kinds[op] = calls[op]
            if sizes[calls[op]] > 1:
                tied.add(op)
            continue
        if type(op) is ReturnOp:
            continue
        is_tied = False
        key: list[Hashable] = []
        for value in op.operands:
            if type(value) is BlockArgument:
                kind = arguments[value]
                is_tied |= any(sizes[call] > 1 for call, _ in kind)
                key.append(kind)
            elif isinstance(value, OpResult):
                is_tied |= value.op in tied
                # Constants have kinds of their own, but are alike.
                same = kinds[value.op] if value.op.operands else alike(value.op)
                key.append((same, value.index))
        kinds[op] = op
        if is_tied:
            tied.add(op)
            kinds[op] = (alike(op), tuple(key))
    return kinds


def _argument_kinds(
    function: FuncOp, calls: Mapping[CallOp, Hashable]
) -> dict[SSAValue, frozenset[tuple[Hashable, int]]]:
    """
    Maps each argument of the function to the kinds of the calls that take it, each with
    the operand index.
    """
    return {
        arg: frozenset(
            (calls[use.operation], use.index)
            for use in arg.uses
            if type(use.operation) is CallOp
        )
        for arg in function.body.block.args
    }
