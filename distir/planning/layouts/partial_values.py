"""Finds the values that can be partial at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue

from distir.dialects.dist import ConstrainOp
from distir.planning.graph.strategies import Option, PassPartial, SplitFactor
from distir.sharding.rule import Rule

Monoids = dict[SSAValue, frozenset[str]]


def without_impossible(
    functions: Sequence[FuncOp],
    rules: Mapping[Operation, Rule],
    options: Mapping[Operation, list[Option]],
) -> dict[Operation, list[Option]]:
    """
    Returns the options of one mesh axis without those that let partial values pass where no
    value can be partial. As nothing makes a whole value partial, a partial one comes from
    an op that splits what it reduces, possibly through ops that let it pass.

    - `functions`: the functions of the program, the entry last;
    - `rules`, `options`: of each op, without calls.
    """
    found: Monoids = {}
    by_name = {f.sym_name.data: f for f in functions}
    changed = True
    while changed:
        changed = False
        # Callers first: what a function does depends on its arguments.
        for function in reversed(functions):
            for op in function.body.block.ops:
                for value, monoids in _given(op, rules, options, found, by_name):
                    known = found.get(value, frozenset())
                    if not monoids <= known:
                        found[value] = known | monoids
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
    found: Monoids,
    functions: Mapping[str, FuncOp],
) -> list[tuple[SSAValue, frozenset[str]]]:
    """
    Returns, for values that an op defines or passes to others, the reductions with which
    they can be partial.
    """
    nothing = frozenset[str]()
    if isinstance(op, ReturnOp):
        return []
    if isinstance(op, ConstrainOp):
        asked = frozenset(monoid for _, monoid in op.layout.data.partial)
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
    rule, monoids = rules[op], set[str]()
    for option in options[op]:
        if isinstance(option, PassPartial) and _passes(op, rule, option, found):
            monoids.add(option.monoid)
        if isinstance(option, SplitFactor):
            factor = rule.factors[option.factor]
            if factor.kind == "reduction" or option.factor in rule.partial_results:
                monoids.add(factor.monoid)
    return [(result, frozenset(monoids)) for result in op.results]


def _passes(op: Operation, rule: Rule, option: PassPartial, found: Monoids) -> bool:
    """Whether all operands that an option takes as partial can be partial."""
    return all(
        option.monoid in found.get(op.operands[i], frozenset())
        for i in rule.linear[option.linear].operands
    )
