"""
Which ops of a function share their strategy.

Calls of one function do the same work on other values, so they may share what they do:
the first and the last each have their own, the ones between take turns with two, so that
neighbours can differ. With them go the ops that belong to one call each, such as the
updates of its parameters: those that are alike in everything but which call of a kind
their operands come from. Ops that touch no repeated call keep their own strategy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from distir.dialects.dist import OPERAND_LAYOUTS, RESULT_LAYOUTS, SCOPE

_NOT_WORK = (SCOPE, OPERAND_LAYOUTS, RESULT_LAYOUTS)

MIN_SHARED_CALLS = 5
"""Fewer calls than that are all different: first, last, and two kinds between."""


def call_kinds(function: FuncOp, *, share: bool) -> dict[CallOp, Hashable]:
    """The kind of each call of a function; calls of a kind share everything."""
    calls: dict[str, list[CallOp]] = {}
    for op in function.body.block.ops:
        if isinstance(op, CallOp):
            calls.setdefault(op.callee.string_value(), []).append(op)
    kinds: dict[CallOp, Hashable] = {}
    for name, same in calls.items():
        last = len(same) - 1
        for place, call in enumerate(same):
            kind: Hashable = place
            if share and len(same) >= MIN_SHARED_CALLS and 0 < place < last:
                kind = "even" if place % 2 == 0 else "odd"
            kinds[call] = (name, kind)
    return kinds


def op_kinds(
    function: FuncOp, calls: Mapping[CallOp, Hashable]
) -> dict[Operation, Hashable]:
    """The kind of every op of a function; those of calls as given."""
    sizes = Counter(calls.values())
    kinds: dict[Operation, Hashable] = {}
    arguments = _argument_kinds(function, calls)
    shared: set[Operation] = set()
    for place, op in enumerate(function.body.block.ops):
        if isinstance(op, CallOp):
            kinds[op] = calls[op]
            if sizes[calls[op]] > 1:
                shared.add(op)
            continue
        if isinstance(op, ReturnOp):
            continue
        is_shared = False
        key: list[Hashable] = []
        for value in op.operands:
            if isinstance(value, BlockArgument):
                kind = arguments[value]
                is_shared |= any(sizes[call] > 1 for call, _ in kind)
                key.append((kind, str(value.type)))
            elif isinstance(value, OpResult):
                is_shared |= value.op in shared
                key.append((kinds[value.op], value.index))
        kinds[op] = (op.name, place)
        if is_shared:
            shared.add(op)
            kinds[op] = (op.name, _work(op), tuple(key))
    return kinds


def _argument_kinds(
    function: FuncOp, calls: Mapping[CallOp, Hashable]
) -> dict[SSAValue, tuple[tuple[Hashable, int], ...]]:
    """Per argument the kinds of calls that take it, and as which operand."""
    return {
        arg: tuple(
            sorted(
                (
                    (calls[use.operation], use.index)
                    for use in arg.uses
                    if isinstance(use.operation, CallOp)
                ),
                key=repr,
            )
        )
        for arg in function.body.block.args
    }


def _work(op: Operation) -> Hashable:
    """What an op does, wherever it came from."""
    attributes = {**op.properties, **op.attributes}
    kept = sorted(name for name in attributes if name not in _NOT_WORK)
    return (
        tuple((name, attributes[name]) for name in kept),
        tuple(result.type for result in op.results),
    )
