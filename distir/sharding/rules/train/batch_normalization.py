"""Rules of the statistics and gradients of batch normalisation."""

from __future__ import annotations

from distir.dialects.train_ops.batch_normalization import (
    BatchNormGradOp,
    BatchNormInputGradOp,
    BatchNormSumsOp,
    BatchNormVarianceOp,
)
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, shape, train_rule


@train_rule("batch_norm_variance", "batch_norm_sums")
def sums(op: BatchNormVarianceOp | BatchNormSumsOp) -> Rule:
    """
    The rule of statistics and their sums: they sum over batch and space; the number of
    elements is an attribute.
    """
    builder, sizes = RuleBuilder(op), shape(op.x)
    dims = builder.whole_along(sizes, (0, *range(2, len(sizes))), "reduction")
    values = (dims[1],)
    if isinstance(op, BatchNormVarianceOp):
        return builder.rule([dims, values], [values])
    return builder.rule([dims, dims, values, values], [values, values], linear=[(0,)])


@train_rule("batch_norm_grad")
def gradients(op: BatchNormGradOp) -> Rule:
    """
    The rule of the gradients of batch normalisation: every dimension is parallel; those of
    scale and bias are sums over batch and space.
    """
    builder = RuleBuilder(op)
    dims = builder.factors(shape(op.x))
    values, summed = (dims[1],), (dims[0], *dims[2:])
    return builder.rule(
        [dims, dims, *[values] * 3],
        [dims, values, values],
        linear=[(0,)],
        reduced={1: summed, 2: summed},
    )


@train_rule("batch_norm_input_grad")
def input_gradient(op: BatchNormInputGradOp) -> Rule:
    """
    The rule of the gradient of its input: every dimension is parallel; linear in the
    incoming gradient and its sums together.
    """
    builder = RuleBuilder(op)
    dims = builder.factors(shape(op.x))
    values = (dims[1],)
    return builder.rule([dims, dims, *[values] * 5], [dims], linear=[(0, 5, 6)])
