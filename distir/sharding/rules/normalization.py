"""
Sharding rules of normalisation ops, and local forms (ops of one device) of these ops
and of gradients of convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Operation

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.batch_normalization import (
    GhostBatchNormGradOp,
    GhostBatchNormOp,
)
from distir.dialects.train_ops.convolution import (
    ConvGradOp,
)
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Dim, Rule
from distir.sharding.rules.builder import (
    RuleBuilder,
    attribute_axis,
    normalized_axis,
    onnx_rule,
)
from distir.sharding.rules.local_builder import LocalBuilder


@onnx_rule("MeanVarianceNormalization")
def over_axes(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of MeanVarianceNormalization. The normalised dimensions
    are whole.
    """
    builder = RuleBuilder(op)
    sizes = shape_of(op.operands[0])
    axes = op.attribute("axes", [0, 2, 3])
    dims = builder.whole_along(sizes, {normalized_axis(a, len(sizes)) for a in axes})
    return builder.rule([dims], [dims])


@onnx_rule("LayerNormalization", "RMSNormalization")
def from_axis(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of ops that normalise the dimensions from `axis` on. These
    dimensions are whole, in the scale and the bias too.
    """
    builder = RuleBuilder(op)
    sizes = shape_of(op.operands[0])
    axis = attribute_axis(op, len(sizes))
    dims = builder.whole_along(sizes, range(axis, len(sizes)))
    statistic = (*dims[:axis], *((),) * (len(sizes) - axis))
    inputs = [
        dims,
        builder.aligned(op.input(1), dims),
        builder.aligned(op.input(2), dims),
    ]
    return builder.rule(inputs, [dims, statistic, statistic])


@onnx_rule("GroupNormalization")
def over_groups(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of group normalisation. Channels are `[groups, channels of
    a group]`, and groups are parallel.
    """
    builder = RuleBuilder(op)
    batch, channels, *space = shape_of(op.operands[0])
    groups = op.attribute("num_groups")
    channel: Dim = builder.factor(groups) + builder.factor(
        channels // groups, "replicate"
    )
    dims = (
        builder.factor(batch),
        channel,
        *builder.factors(space, "replicate"),
    )
    return builder.rule([dims, (channel,), (channel,)], [dims])


@local_form("onnx.GroupNormalization")
def over_groups_local(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for group normalisation: the op with the number of local
    groups in `num_groups`.
    """
    builder = LocalBuilder(context)
    channels = shape_of(context.op.operands[0])[1]
    local = shape_of(context.operands[0])[1]
    groups = builder.op.attribute("num_groups")
    return builder.finish(attributes={"num_groups": groups * local // channels})


@onnx_rule("BatchNormalization")
def over_batch(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of batch normalisation. In inference every dimension is
    parallel. In training all dimensions except channels are whole.
    """
    builder = RuleBuilder(op)
    sizes = shape_of(op.operands[0])
    training = bool(op.attribute("training_mode"))
    axes = {i for i in range(len(sizes)) if i != 1} if training else ()
    dims = builder.whole_along(sizes, axes)
    channel = (dims[1],) if len(dims) > 1 else ((),)
    return builder.rule([dims, *[channel] * 4], [dims, channel, channel])


@local_form("train.conv_grad_input", "train.conv_grad_weight")
def convolution_local(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for a gradient of a convolution: the op with the number of
    local groups in `group`.
    """
    op, local = context.op, context.same_op()
    assert isinstance(op, ConvGradOp)
    if op.groups > 1:
        group = context.rule.operands[0][1][0]
        groups = op.groups // context.parts_of(group)
        local.properties["group"] = IntegerAttr(groups, i64)
    return [local]


@local_form("train.ghost_batch_norm", "train.ghost_batch_norm_grad")
def local_parts(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for ghost batch normalisation (with separate statistics for
    groups of samples) or for its gradient: the op with the number of local groups.
    """
    op = context.op
    assert isinstance(op, GhostBatchNormOp | GhostBatchNormGradOp)
    local = context.same_op()
    assert isinstance(local, GhostBatchNormOp | GhostBatchNormGradOp)
    groups = op.groups.value.data * shape_of(local.x)[0] // shape_of(op.x)[0]
    local.groups = IntegerAttr(groups, i64)
    return [local]
