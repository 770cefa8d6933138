"""Rules of losses and their gradients."""

from __future__ import annotations

from distir.dialects.train_ops.losses import CrossEntropyGradOp, CrossEntropyOp
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, shape, train_rule


@train_rule("cross_entropy")
def cross_entropy(op: CrossEntropyOp) -> Rule:
    """Labels are summed over; classes are whole."""
    builder = RuleBuilder(op)
    *places, classes = shape(op.logits)
    labels = builder.factors(places, "reduction")
    return builder.rule([(*labels, builder.factor(classes, "replicate")), labels], [()])


@train_rule("cross_entropy_grad")
def cross_entropy_gradient(op: CrossEntropyGradOp) -> Rule:
    """Labels are parallel; classes are whole. Linear in the gradient that comes in."""
    builder = RuleBuilder(op)
    *places, classes = shape(op.logits)
    labels = builder.factors(places)
    logits = (*labels, builder.factor(classes, "replicate"))
    return builder.rule([(), logits, labels], [logits], linear=[(0,)])
