"""
Sharding rules of convolutions, pooling and resizing, and their local forms: the ops of
one device. Spatial dimensions are never split, because there are no halo exchanges.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy.typing as npt
from xdsl.ir import Operation

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.resampling import ResizeGradOp
from distir.sharding.factor_text import rule_from
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import (
    RuleBuilder,
    constant_operand,
    normalized_axis,
    onnx_rule,
    train_rule,
)
from distir.sharding.rules.local_builder import LocalBuilder


@onnx_rule("Conv", "ConvTranspose")
def convolution(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of convolutions. Input channels are `[group, c]` and
    output channels `[group, m]`. `c` is summed, then the bias is added. Batch and
    output channels are parallel.
    """
    builder, transposed = RuleBuilder(op), op.name == "onnx.ConvTranspose"
    batch_size, in_channels, *space = shape_of(op.operands[0])
    kernel = shape_of(op.operands[1])
    _, out_channels, *out_space = shape_of(op.results[0])
    groups = op.attribute("group")
    batch = builder.factor(batch_size)
    group = builder.factor(groups)
    source = builder.factor(in_channels // groups, "reduction")
    target = builder.factor(out_channels // groups)
    flops = builder.contraction_flops()
    flops *= prod(space if transposed else out_space) * prod(kernel[2:])
    window = builder.factors(kernel[2:], "replicate")
    weight = (group + source, target) if transposed else (group + target, source)
    biased = op.input(2) is not None
    return builder.rule(
        [
            (batch, group + source, *builder.factors(space, "replicate")),
            (*weight, *window),
            (group + target,),
        ],
        [(batch, group + target, *builder.factors(out_space, "replicate"))],
        linear=[(0, 2), (1, 2)] if biased else [(0,), (1,)],
        decomposed=(source,) if biased else (),
        flops=flops,
    )


@local_form("onnx.Conv", "onnx.ConvTranspose")
def convolution_local(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for convolutions: the op with the number of local groups in
    the attribute `group`.
    """
    builder = LocalBuilder(context)
    groups = builder.op.attribute("group")
    (group,) = context.rule.operands[0][1][:1] if groups > 1 else (None,)
    if group is None or context.parts_of(group) == 1:
        return [context.same_op()]
    return builder.finish(attributes={"group": groups // context.parts_of(group)})


_max_pooled = rule_from("[n, c, *s] -> [n, c, *t] keep s t linear max 0")


@onnx_rule("MaxPool")
def max_pool(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of max pooling. Batch and channels are parallel. With the
    optional output of indices nothing is split, because the indices count elements of
    the whole tensor.
    """
    if len(op.results) > 1:
        return Rule.replicated(op)
    return _max_pooled(op)


@onnx_rule("Resize")
def resize(op: OnnxOp) -> Rule:
    """
    Returns the sharding rule of resizing. Dimensions that keep their size are parallel;
    resized dimensions are whole.
    """
    fixed = op.attribute("coordinate_transformation_mode") != "tf_crop_and_resize"
    if not fixed or op.attribute("keep_aspect_ratio_policy") != "stretch":
        return Rule.replicated(op)
    scales = constant_operand(op, 2)
    if op.input(2) is not None and scales is None:
        return Rule.replicated(op)
    builder = RuleBuilder(op)
    source, target = shape_of(op.operands[0]), shape_of(op.results[0])
    stretched = _stretched(op, scales, len(source))
    same = [
        before == after and axis not in stretched
        for axis, (before, after) in enumerate(zip(source, target, strict=True))
    ]
    before = tuple(
        builder.factor(size, "parallel" if kept else "replicate")
        for size, kept in zip(source, same, strict=True)
    )
    after = tuple(
        dim if kept else builder.factor(size, "replicate")
        for size, kept, dim in zip(target, same, before, strict=True)
    )
    return builder.rule([before], [after])


def _stretched(
    op: OnnxOp, scales: npt.NDArray[Any] | None, rank: int
) -> frozenset[int]:
    """
    Returns the axes whose scale is not 1, including axes whose size stays the same
    because of rounding.
    """
    if scales is None:
        return frozenset()
    axes = op.attribute("axes", list(range(rank)))
    return frozenset(
        normalized_axis(axis, rank)
        for axis, scale in zip(axes, scales, strict=True)
        if scale != 1
    )


@local_form("onnx.Resize")
def resize_local(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for resizing: the op with the sizes of this device's part
    as its target.
    """
    builder = LocalBuilder(context)
    sizes = builder.result_shape()
    if builder.input(3) is None or sizes == shape_of(context.op.results[0]):
        return [context.same_op()]
    rank = len(sizes)
    axes = builder.op.attribute("axes", list(range(rank)))
    local = builder.shape_constant([sizes[normalized_axis(a, rank)] for a in axes])
    return builder.finish([*builder.inputs[:3], local])


@train_rule("resize_grad")
def resize_gradient(op: ResizeGradOp) -> Rule:
    """
    Returns the sharding rule of the gradient of resizing. Dimensions that keep their
    size are parallel; resized dimensions are whole. The op is linear.
    """
    builder, resized = RuleBuilder(op), op.resized
    before = tuple(
        builder.factor(size, "replicate" if dim in resized else "parallel")
        for dim, size in enumerate(shape_of(op.dy))
    )
    after = tuple(
        builder.factor(size, "replicate") if dim in resized else before[dim]
        for dim, size in enumerate(shape_of(op.dx))
    )
    return builder.rule([before], [after], linear=[(0,)])
