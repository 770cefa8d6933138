"""
Rules of the gradients of softmax and its logarithm, which are linear in the incoming
gradient.
"""

from __future__ import annotations

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.softmax import SoftmaxFamilyGradOp
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, train_rule


@train_rule("softmax_grad", "log_softmax_grad")
def softmax_gradient(op: SoftmaxFamilyGradOp) -> Rule:
    """The rule of these gradients: the normalised dimension is whole."""
    builder = RuleBuilder(op)
    dims = builder.whole_along(shape_of(op.y), {op.dimension})
    return builder.rule([dims, dims], [dims], linear=[(0,)])
