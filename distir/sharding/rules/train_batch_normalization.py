"""Rules of the gradients of batch normalisation."""

from __future__ import annotations

from distir.dialects.train_ops.batch_normalization import (
    BatchNormInputGradOp,
    BatchNormSumsOp,
)
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, shape, train_rule


@train_rule("batch_norm_sums")
def sums(op: BatchNormSumsOp) -> Rule:
    """Channels are parallel, the rest is summed."""
    builder = RuleBuilder(op)
    batch, channels, *space = shape(op.x)
    channel = builder.factor(channels)
    dims = (
        builder.factor(batch, "reduction"),
        channel,
        *builder.factors(space, "reduction"),
    )
    values = (channel,)
    return builder.rule([dims, dims, values, values], [values, values], linear=[(0,)])


@train_rule("batch_norm_input_grad")
def input_gradient(op: BatchNormInputGradOp) -> Rule:
    """Every dimension is parallel; linear in the gradient and its sums together."""
    builder = RuleBuilder(op)
    dims = builder.factors(shape(op.x))
    values = (dims[1],)
    return builder.rule([dims, dims, *[values] * 5], [dims], linear=[(0, 5, 6)])
