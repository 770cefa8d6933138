"""Rule of the gradient of shrinkage, which is linear in what comes in."""

from __future__ import annotations

from distir.dialects.train_ops.shrink import ShrinkGradOp
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, shape, train_rule


@train_rule("shrink_grad")
def shrink_gradient(op: ShrinkGradOp) -> Rule:
    """Every dimension is parallel."""
    builder = RuleBuilder(op)
    dims = builder.factors(shape(op.x))
    return builder.rule([dims, dims], [dims], linear=[(0,)])
