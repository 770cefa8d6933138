"""Rules of losses and their gradients, and their decompositions for split classes."""

from __future__ import annotations

from xdsl.ir import Operation

from distir.dialects.dist import entries_of
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.loss_steps import (
    CrossEntropyPartGradOp,
    CrossEntropySumOp,
    ExponentialSumOp,
    LabelLogitOp,
    LogitMaximumOp,
)
from distir.dialects.train_ops.losses import CrossEntropyGradOp, CrossEntropyOp
from distir.sharding.decompose import decomposition, in_scope_of
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, train_rule


@train_rule("cross_entropy")
def cross_entropy(op: CrossEntropyOp) -> Rule:
    """
    The rule of a cross-entropy: labels are summed over; the decomposition can split
    classes.
    """
    builder = RuleBuilder(op)
    *places, count = shape_of(op.logits)
    labels = builder.factors(places, "reduction")
    classes = builder.factor(count, "reduction")
    return builder.rule([(*labels, classes), labels], [()], decomposed=(classes,))


@train_rule("cross_entropy_grad")
def cross_entropy_gradient(op: CrossEntropyGradOp) -> Rule:
    """
    The rule of its gradient: labels are parallel, classes in the decomposition. Linear in
    the incoming gradient.
    """
    builder = RuleBuilder(op)
    *places, count = shape_of(op.logits)
    labels, classes = builder.factors(places), builder.factor(count)
    logits = (*labels, classes)
    return builder.rule(
        [(), logits, labels], [logits], linear=[(0,)], decomposed=(classes,)
    )


@decomposition("train.cross_entropy")
def loss_in_steps(op: Operation) -> list[Operation]:
    """
    Decomposes a cross-entropy: the maximum and the sum of exponentials of each label's
    logits, its own logit, and the sum over labels.
    """
    assert isinstance(op, CrossEntropyOp)
    maximum = LogitMaximumOp(op.logits)
    total = ExponentialSumOp(op.logits, maximum.maximum)
    chosen = LabelLogitOp(op.logits, op.labels)
    loss = CrossEntropySumOp(
        *(maximum.maximum, total.total, chosen.chosen, op.labels),
        classes=entries_of(op) or shape_of(op.logits)[-1],
        **op.properties,
    )
    return in_scope_of(op, [maximum, total, chosen, loss])


@decomposition("train.cross_entropy_grad")
def gradient_in_steps(op: Operation) -> list[Operation]:
    """
    Decomposes its gradient: the softmax and the label of each class, given maximum and sum,
    which the loss has computed.
    """
    assert isinstance(op, CrossEntropyGradOp)
    maximum = LogitMaximumOp(op.logits)
    total = ExponentialSumOp(op.logits, maximum.maximum)
    gradient = CrossEntropyPartGradOp(
        *(op.dloss, op.logits, op.labels, maximum.maximum, total.total),
        **op.properties,
    )
    return in_scope_of(op, [maximum, total, gradient])
