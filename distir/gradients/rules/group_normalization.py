"""Gradient rules of normalisation over the channels and positions of one sample."""

from __future__ import annotations

from math import prod

import numpy as np
from xdsl.ir import SSAValue

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.normalization import LayerNormGradOp, LayerNormOp
from distir.gradients.rule import GradientBuilder, Gradients, onnx_gradient, shape


@onnx_gradient("InstanceNormalization")
def instance_normalization(
    op: OnnxOp, dy: SSAValue, build: GradientBuilder
) -> Gradients:
    """Needs the input and the scale; every channel is a group."""
    return _in_groups(op, shape(op.operands[0])[1], dy, build)


@onnx_gradient("GroupNormalization")
def group_normalization(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """Needs the input and the scale."""
    return _in_groups(op, op.attribute("num_groups"), dy, build)


def _in_groups(
    op: OnnxOp, groups: int, dy: SSAValue, build: GradientBuilder
) -> Gradients:
    """
    Treats it as layer normalisation, without a scale, of rows that each hold a group; scale
    and bias have one number for each channel.
    """
    x, scale, _ = op.operands
    sizes, epsilon = shape(x), op.attribute("epsilon")
    row = prod(sizes[1:]) // groups
    rows = build.integers([sizes[0], groups, row])
    ones = build.constant(np.ones(row, numpy_dtype(element_type(x))))

    def per_channel(value: SSAValue) -> SSAValue:
        ends = build.integers([sizes[1], *[1] * (len(sizes) - 2)])
        return build.onnx("Reshape", value, ends)

    grouped = build.onnx("Reshape", x, rows)
    scaled = build.onnx("Mul", dy, per_channel(scale))
    scaled = build.onnx("Reshape", scaled, rows)
    kept = LayerNormOp(grouped, ones, axis=2, epsilon=epsilon)
    build.add(kept)
    dx = build.result(
        LayerNormGradOp(
            *(scaled, grouped, ones, kept.mean, kept.inverse),
            axis=2,
            epsilon=epsilon,
            dbias=None,
        )
    )
    normal = build.reshape_like(kept.y, x)
    channels = build.integers([0, *range(2, len(sizes))])
    dscale = build.onnx(
        "ReduceSum", build.onnx("Mul", dy, normal), channels, keepdims=0
    )
    dbias = build.onnx("ReduceSum", dy, channels, keepdims=0)
    return [build.reshape_like(dx, x), dscale, dbias]
