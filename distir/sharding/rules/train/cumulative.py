"""The rule of the gradient of running products."""

from __future__ import annotations

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.cumulative import CumProdGradOp
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, train_rule


@train_rule("cumprod_grad")
def running_product_gradient(op: CumProdGradOp) -> Rule:
    """The axis is whole; linear in the incoming gradient."""
    builder = RuleBuilder(op)
    dims = builder.whole_along(shape_of(op.x), {op.dimension})
    return builder.rule([dims, dims], [dims], linear=[(0,)])
