"""Rules of the statistics and gradients of batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence

from distir.dialects.train_ops.batch_normalization import (
    BatchNormInputGradOp,
    BatchNormSumsOp,
    BatchNormVarianceOp,
)
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import Dims, RuleBuilder, shape, train_rule


def _over_batch(builder: RuleBuilder, sizes: Sequence[int]) -> Dims:
    """Channels are parallel, the rest is summed."""
    return tuple(
        builder.factor(size, "parallel" if i == 1 else "reduction")
        for i, size in enumerate(sizes)
    )


@train_rule("batch_norm_variance")
def variance(op: BatchNormVarianceOp) -> Rule:
    """A sum over batch and space; the number of elements is an attribute."""
    builder = RuleBuilder(op)
    dims = _over_batch(builder, shape(op.x))
    values = (dims[1],)
    return builder.rule([dims, values], [values])


@train_rule("batch_norm_sums")
def sums(op: BatchNormSumsOp) -> Rule:
    """Sums over batch and space."""
    builder = RuleBuilder(op)
    dims = _over_batch(builder, shape(op.x))
    values = (dims[1],)
    return builder.rule([dims, dims, values, values], [values, values], linear=[(0,)])


@train_rule("batch_norm_input_grad")
def input_gradient(op: BatchNormInputGradOp) -> Rule:
    """Every dimension is parallel; linear in the gradient and its sums together."""
    builder = RuleBuilder(op)
    dims = builder.factors(shape(op.x))
    values = (dims[1],)
    return builder.rule([dims, dims, *[values] * 5], [dims], linear=[(0, 5, 6)])
