"""
Finds the values of a program that can be partial for at least one choice of strategies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import ConstrainOp
from distir.planning.graph.strategies import Option, PassPartial, SplitFactor
from distir.sharding.rule import Rule

Reductions = dict[SSAValue, frozenset[str]]


def without_impossible(
    functions: Sequence[FuncOp],
    rules: Mapping[Operation, Rule],
    options: Mapping[Operation, list[Option]],
) -> dict[Operation, list[Option]]:
    """
    Removes options that can never apply, because they pass partial values through an op
    with operands that cannot be partial. Returns the remaining options of one mesh
    axis. Partial values start only at an op that splits a dimension that it reduces;
    other ops can pass them on.

    - `functions`: the functions of the program, the entry last;
    - `rules`, `options`: the sharding rule and the options of each op, without calls.
    """
    found: Reductions = {}
    by_name = {f.sym_name.data: f for f in functions}
    changed = True
    while changed:
        changed = False
        # Callers first: what a function does depends on its arguments.
        for function in reversed(functions):
            for op in function.body.block.ops:
                for value, reductions in _given(op, rules, options, found, by_name):
                    known = found.get(value, frozenset())
                    if not reductions <= known:
                        found[value] = known | reductions
                        changed = True
    return {
        op: [
            o
            for o in own
            if not isinstance(o, PassPartial) or _passes(op, rules[op], o, found)
        ]
        for op, own in options.items()
    }


def _given(
    op: Operation,
    rules: Mapping[Operation, Rule],
    options: Mapping[Operation, list[Option]],
    found: Reductions,
    functions: Mapping[str, FuncOp],
) -> list[tuple[SSAValue, frozenset[str]]]:
    """
    Returns a pair for each value that `op` computes or passes to another function: the
    value, and the reductions (such as "sum") with which the value can be partial.
    `found` holds the reductions that are known so far.
    """
    nothing = frozenset[str]()
    if isinstance(op, ReturnOp):
        return []
    if isinstance(op, ConstrainOp):
        asked = frozenset(reduction for _, reduction in op.layout.data.partial)
        return [(op.result, asked | found.get(op.source, nothing))]
    if isinstance(op, CallOp):
        block = functions[op.callee.string_value()].body.block
        last = block.last_op
        assert last is not None
        pairs = [
            *zip(block.args, op.operands, strict=True),
            *zip(op.results, last.operands, strict=True),
        ]
        return [(value, found.get(source, nothing)) for value, source in pairs]
    rule, reductions = rules[op], set[str]()
    for option in options[op]:
        if isinstance(option, PassPartial) and _passes(op, rule, option, found):
            reductions.add(option.reduction)
        if isinstance(option, SplitFactor):
            factor = rule.factors[option.factor]
            if factor.kind == "reduction" or option.factor in rule.partial_results:
                reductions.add(factor.reduction)
    return [(result, frozenset(reductions)) for result in op.results]


def _passes(op: Operation, rule: Rule, option: PassPartial, found: Reductions) -> bool:
    """
    Whether all operands that `option` takes as partial values can be partial, according
    to `found`, which holds the reductions of each value.
    """
    return all(
        option.reduction in found.get(op.operands[i], frozenset())
        for i in rule.linear[option.linear].operands
    )
