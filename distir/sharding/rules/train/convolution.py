"""Rules and local forms of the gradients of convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.ir import Operation

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.convolution import (
    AveragePoolGradOp,
    ConvGradInputOp,
    ConvGradOp,
    ConvGradWeightOp,
    MaxPoolGradOp,
)
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, train_rule


@train_rule("conv_grad_input")
def convolution_input(op: ConvGradInputOp) -> Rule:
    """
    The rule of the gradient of a convolution's input. Channels are, as in `onnx.Conv`,
    `[group, c]` and `[group, m]`; output channels are summed. Space is never split.
    """
    builder = RuleBuilder(op)
    batch_size, out_channels, *windows = shape_of(op.dy)
    _, in_channels, *space = shape_of(op.dx)
    batch, group = builder.factor(batch_size), builder.factor(op.groups)
    target = builder.factor(out_channels // op.groups, "reduction")
    source = builder.factor(in_channels // op.groups)
    kernel = shape_of(op.weight)[2:]
    flops = builder.contraction_flops() * prod(windows) * prod(kernel)
    return builder.rule(
        [
            (batch, group + target, *builder.factors(windows, "replicate")),
            (group + target, source, *builder.factors(kernel, "replicate")),
        ],
        [(batch, group + source, *((),) * len(space))],
        linear=[(0,), (1,)],
        flops=flops,
    )


@train_rule("conv_grad_weight")
def convolution_weight(op: ConvGradWeightOp) -> Rule:
    """
    The rule of the gradient of a convolution's weight: the batch is summed over, so that a
    split batch leaves partial sums.
    """
    builder = RuleBuilder(op)
    batch_size, in_channels, *space = shape_of(op.x)
    _, out_channels, *windows = shape_of(op.dy)
    batch = builder.factor(batch_size, "reduction")
    group = builder.factor(op.groups)
    target = builder.factor(out_channels // op.groups)
    source = builder.factor(in_channels // op.groups)
    kernel = shape_of(op.dweight)[2:]
    flops = builder.contraction_flops() * prod(windows) * prod(kernel)
    return builder.rule(
        [
            (batch, group + source, *builder.factors(space, "replicate")),
            (batch, group + target, *builder.factors(windows, "replicate")),
        ],
        [(group + target, source, *((),) * len(kernel))],
        linear=[(0,), (1,)],
        flops=flops,
    )


@local_form("train.conv_grad_input", "train.conv_grad_weight")
def convolution_local(context: LocalContext) -> Sequence[Operation]:
    """The local form of these gradients: the attribute `group` counts local groups."""
    op, local = context.op, context.same_op()
    assert isinstance(op, ConvGradOp)
    if op.groups > 1:
        group = context.rule.operands[0][1][0]
        groups = op.groups // context.parts_of(group)
        local.properties["group"] = IntegerAttr(groups, i64)
    return [local]


@train_rule("max_pool_grad", "average_pool_grad")
def pool(op: MaxPoolGradOp | AveragePoolGradOp) -> Rule:
    """
    The rule of the gradients of pooling: batch and channels are parallel. Linear in the
    incoming gradient.
    """
    builder = RuleBuilder(op)
    maps = builder.factors(shape_of(op.dx)[:2])
    operands = [
        (*maps, *builder.factors(shape_of(value)[2:], "replicate"))
        for value in op.operands
    ]
    result = (*maps, *((),) * (len(shape_of(op.dx)) - 2))
    return builder.rule(operands, [result], linear=[(0,)])
