"""Gradients of losses."""

from __future__ import annotations

from distir.dialects.train_ops.losses import CrossEntropyGradOp, CrossEntropyOp
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule


@gradient_rule("train.cross_entropy")
def cross_entropy(
    op: CrossEntropyOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """One fused op, from the logits themselves."""
    (dloss,) = gradients
    assert dloss is not None
    divisor = None if op.divisor is None else op.divisor.value.data
    grad = CrossEntropyGradOp(dloss, op.logits, op.labels, divisor, op.ignored)
    return [build.add(grad).results[0], None]
