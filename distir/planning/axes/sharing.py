"""Which ops and arguments of a function decide alike, because the calls that they belong to do."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from distir.planning.axes.candidates import OpCandidates
from distir.planning.axes.graph import Body

Info = Callable[[Operation], OpCandidates]


def value_kinds(body: Body, info: Info) -> dict[object, Hashable]:
    """
    The kinds of ops and arguments that belong to calls which decide alike; others are
    kinds of their own and not in it.
    """
    calls: dict[Body, int] = {}
    for callee in body.calls.values():
        calls[callee] = calls.get(callee, 0) + 1
    if not any(n > 1 for n in calls.values()):
        return {}
    kinds: dict[object, Hashable] = {}
    numbers: dict[Hashable, int] = {}
    for arg, facts in zip(body.function.body.block.args, body.arguments, strict=True):
        taken = [
            (id(body.calls[use.operation]), use.index)
            for use in arg.uses
            if isinstance(use.operation, CallOp)
        ]
        if any(
            calls[body.calls[u.operation]] > 1
            for u in arg.uses
            if isinstance(u.operation, CallOp)
        ):
            others = sum(not isinstance(u.operation, CallOp) for u in arg.uses)
            key = (facts.fixed, facts.source, tuple(sorted(taken)), others)
            kinds[arg] = numbers.setdefault(key, len(numbers))
    for op in body.function.body.block.ops:
        if isinstance(op, ReturnOp):
            continue
        if isinstance(op, CallOp):
            if calls[body.calls[op]] > 1:
                for i, result in enumerate(op.results):
                    key = (id(body.calls[op]), i)
                    kinds[result] = numbers.setdefault(key, len(numbers))
            continue
        if not any(v in kinds for v in op.operands):
            continue
        key = (
            id(info(op)),
            id(body.strategies[op]),
            tuple(_kind(body, v, kinds, info) for v in op.operands),
        )
        number = numbers.setdefault(key, len(numbers))
        kinds[op] = ("op", id(body), number)
        for i, result in enumerate(op.results):
            kinds[result] = numbers.setdefault((number, i), len(numbers))
    return kinds


def _kind(
    body: Body, value: SSAValue, kinds: Mapping[object, Hashable], info: Info
) -> Hashable:
    """What operands have in common that ops which decide alike may take."""
    if value in kinds:
        return kinds[value]
    if isinstance(value, BlockArgument):
        facts = body.arguments[value.index]
        return ("argument", facts.fixed, facts.source)
    owner = value.owner
    assert isinstance(owner, Operation)
    if not owner.operands and owner in body.strategies:
        return ("constant", id(info(owner)), id(body.strategies[owner]))
    return value
