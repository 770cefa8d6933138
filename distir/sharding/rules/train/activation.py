"""
Rules of the gradients of activation functions, which are linear in the incoming gradient.
"""

from __future__ import annotations

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.activation import ActivationGradOp
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, train_rule


@train_rule("gelu_grad", "relu_grad", "swish_grad")
def activation_gradient(op: ActivationGradOp) -> Rule:
    """The rule of these gradients: every dimension is parallel."""
    builder = RuleBuilder(op)
    dims = builder.factors(shape_of(op.x))
    return builder.rule([dims, dims], [dims], linear=[(0,)])
