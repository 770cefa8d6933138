"""Rules of optimizers."""

from __future__ import annotations

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.optimizers import SquareSumOp, UpdateOp
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, train_rule


@train_rule("sgd", "adam", "adamw")
def update(op: UpdateOp) -> Rule:
    """
    The rule of updates: parameter, gradient and states are split alike, in any way; the
    other operands are scalars.
    """
    builder = RuleBuilder(op)
    dims = builder.factors(shape_of(op.operands[0]))
    alike = len(op.tensors)
    scalars = [()] * (len(op.operands) - alike)
    return builder.rule([dims] * alike + scalars, [dims] * len(op.results))


@train_rule("square_sum")
def square_sum(op: SquareSumOp) -> Rule:
    """The rule of sums of squares: everything is summed over."""
    builder = RuleBuilder(op)
    return builder.rule([builder.factors(shape_of(op.source), "reduction")], [()])
