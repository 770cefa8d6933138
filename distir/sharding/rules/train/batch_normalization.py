"""Rules of the statistics and gradients of batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Operation

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.batch_normalization import (
    BatchNormGradOp,
    BatchNormInputGradOp,
    BatchNormSumsOp,
    BatchNormVarianceOp,
    GhostBatchNormGradOp,
    GhostBatchNormOp,
)
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Dim, Rule
from distir.sharding.rules.builder import RuleBuilder, train_rule


@train_rule("batch_norm_variance", "batch_norm_sums")
def sums(op: BatchNormVarianceOp | BatchNormSumsOp) -> Rule:
    """
    The rule of statistics and their sums: they sum over batch and space; the number of
    elements is an attribute.
    """
    builder, sizes = RuleBuilder(op), shape_of(op.x)
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
    dims = builder.factors(shape_of(op.x))
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
    dims = builder.factors(shape_of(op.x))
    values = (dims[1],)
    return builder.rule([dims, dims, *[values] * 5], [dims], linear=[(0, 5, 6)])


@train_rule("ghost_batch_norm", "ghost_batch_norm_grad")
def of_parts(op: GhostBatchNormOp | GhostBatchNormGradOp) -> Rule:
    """
    Returns the rule of ghost batch normalisation or its gradient: samples are `[groups,
    samples of a group]`. Groups and channels are independent; gradients of scale and bias
    are sums over the groups.
    """
    builder = RuleBuilder(op)
    batch, channels, *space = shape_of(op.x)
    groups = op.groups.value.data
    group = builder.factor(groups)
    samples: Dim = group + builder.factor(batch // groups, "replicate")
    channel = builder.factor(channels)
    dims = (samples, channel, *builder.factors(space, "replicate"))
    values, statistic = (channel,), (group, channel)
    if isinstance(op, GhostBatchNormOp):
        return builder.rule([dims, values, values], [dims, statistic, statistic])
    return builder.rule(
        [dims, dims, values, statistic, statistic],
        [dims, values, values],
        linear=[(0,)],
        reduced={1: (group,), 2: (group,)},
    )


@local_form("train.ghost_batch_norm", "train.ghost_batch_norm_grad")
def local_parts(context: LocalContext) -> Sequence[Operation]:
    """
    Returns the local form of ghost batch normalisation, with the local number of groups.
    """
    op = context.op
    assert isinstance(op, GhostBatchNormOp | GhostBatchNormGradOp)
    local = context.same_op()
    assert isinstance(local, GhostBatchNormOp | GhostBatchNormGradOp)
    groups = op.groups.value.data * shape_of(local.x)[0] // shape_of(op.x)[0]
    local.groups = IntegerAttr(groups, i64)
    return [local]
