"""Rules of optimizers."""

from __future__ import annotations

from xdsl.ir import Operation

from distir.dialects.train_ops.optimizers import AdamFamilyOp, SquareSumOp
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, shape, train_rule


@train_rule("sgd", "adam", "adamw")
def update(op: Operation) -> Rule:
    """Parameter, gradient and states split alike, in any way; the step is whole."""
    builder = RuleBuilder(op)
    dims = builder.factors(shape(op.operands[0]))
    step = [()] if isinstance(op, AdamFamilyOp) else []
    same = [dims] * (len(op.operands) - len(step))
    return builder.rule([*same, *step], [dims] * len(op.results))


@train_rule("square_sum")
def square_sum(op: SquareSumOp) -> Rule:
    """Everything is summed over."""
    builder = RuleBuilder(op)
    return builder.rule([builder.factors(shape(op.source), "reduction")], [()])
