"""Rules of optimizers."""

from __future__ import annotations

from distir.dialects.train_ops.optimizers import SquareSumOp, UpdateOp
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, shape, train_rule


@train_rule("sgd", "adam", "adamw")
def update(op: UpdateOp) -> Rule:
    """Parameter, gradient and states split alike, in any way; what else is a scalar."""
    builder = RuleBuilder(op)
    dims = builder.factors(shape(op.operands[0]))
    alike = len(op.tensors)
    scalars = [()] * (len(op.operands) - alike)
    return builder.rule([dims] * alike + scalars, [dims] * len(op.results))


@train_rule("square_sum")
def square_sum(op: SquareSumOp) -> Rule:
    """Everything is summed over."""
    builder = RuleBuilder(op)
    return builder.rule([builder.factors(shape(op.source), "reduction")], [()])
