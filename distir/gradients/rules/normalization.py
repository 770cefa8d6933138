"""
Training forms and gradient rules of normalisation layers. The training form of a layer
is a single op, and so is its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.ir import SSAValue

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.onnx_ops.values import numpy_dtype
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.normalization import (
    LayerNormGradOp,
    LayerNormOp,
    RmsNormGradOp,
    RmsNormOp,
)
from distir.errors import DistIRError
from distir.gradients.rule import (
    GradientBuilder,
    Gradients,
    gradient_rule,
    onnx_gradient,
    shape,
    training_form,
)
from distir.program import describe


def _is_per_row(scale: SSAValue, sizes: Sequence[int], axis: int) -> bool:
    """
    Whether `scale` broadcasts within a row and is the same for all rows. `sizes` is the
    shape of the input, whose rows start at dimension `axis`.
    """
    have = shape(scale)
    extra = len(have) - (len(sizes) - axis)
    return extra <= 0 or prod(have[:extra]) == 1


def _full(value: SSAValue, sizes: Sequence[int], build: GradientBuilder) -> SSAValue:
    """
    Returns `value`, a scale that broadcasts within a row, expanded to the row's shape
    `sizes`.
    """
    have = shape(value)
    if have == tuple(sizes):
        return value
    if len(have) > len(sizes):
        value = build.onnx("Reshape", value, build.integers(have[-len(sizes) :]))
    if shape(value) != tuple(sizes):
        value = build.onnx("Expand", value, build.integers(sizes))
    return value


def _narrow(gradient: SSAValue, target: SSAValue, build: GradientBuilder) -> SSAValue:
    """
    Sums a gradient over the dimensions in which `target` was broadcast within rows.
    `target` is a scale or a bias. The result has its shape.
    """
    if len(shape(target)) > len(shape(gradient)):
        padded = (1,) * (len(shape(target)) - len(shape(gradient))) + shape(gradient)
        gradient = build.onnx("Reshape", gradient, build.integers(padded))
    return build.sum_to(gradient, target)


def _ones(like: SSAValue, sizes: Sequence[int], build: GradientBuilder) -> SSAValue:
    return build.constant(np.ones(sizes, numpy_dtype(like.type.element_type)))  # pyright: ignore[reportAttributeAccessIssue]


def _kept(
    op: OnnxOp, x: SSAValue, scale: SSAValue, bias: SSAValue | None
) -> LayerNormOp | RmsNormOp:
    """
    Returns an op that normalises `x` in the way of `op`, with the given scale and bias,
    and also returns the statistics of rows.
    """
    axis = op.attribute("axis") % len(shape(x))
    epsilon = op.attribute("epsilon")
    if op.name == "onnx.RMSNormalization":
        return RmsNormOp(x, scale, axis=axis, epsilon=epsilon)
    return LayerNormOp(x, scale, bias, axis=axis, epsilon=epsilon)


@training_form("onnx.LayerNormalization", "onnx.RMSNormalization")
def kept_normalization(op: OnnxOp) -> LayerNormOp | RmsNormOp | None:
    """
    Returns the training form of a normalisation, which also returns the statistics of
    rows. Returns None unless scale and bias have one number for each element of a row,
    and only the first result is used.
    """
    x, scale, bias = op.operands[0], op.operands[1], op.input(2)
    row = shape(x)[op.attribute("axis") % len(shape(x)) :]
    unused = all(result.first_use is None for result in op.results[1:])
    if not unused or any(shape(v) != row for v in (scale, bias) if v is not None):
        return None
    return _kept(op, x, scale, bias)


@gradient_rule("train.layer_norm")
def layer_norm(
    op: LayerNormOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """
    Gradient rule of `train.layer_norm`. The gradients are computed from the input, the
    scale and the statistics.
    """
    dy, settings = gradients[0], {"axis": op.axis, "epsilon": op.epsilon}
    assert dy is not None
    left_out = {"dbias": None} if op.bias is None else {}
    fused = LayerNormGradOp(
        *(dy, op.x, op.scale, op.mean, op.inverse), **settings, **left_out
    )
    return build.add(fused).results


@gradient_rule("train.rms_norm")
def rms_norm(op: RmsNormOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of `train.rms_norm`. The gradients are computed from the input, the
    scale and the statistic.
    """
    dy = gradients[0]
    assert dy is not None
    fused = RmsNormGradOp(
        *(dy, op.x, op.scale, op.inverse), axis=op.axis, epsilon=op.epsilon
    )
    return build.add(fused).results


@gradient_rule("onnx.LayerNormalization", "onnx.RMSNormalization")
def normalization(
    op: OnnxOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """
    Gradient rule of normalisations without a training form, because their scale or bias
    is broadcast. The gradients are computed from the input and the scale, and the
    statistics are recomputed. Raises DistIRError if a loss depends on the statistics.
    """
    if any(g is not None for g in gradients[1:]):
        raise DistIRError(
            f"{describe(op)} has no gradient rule for its mean and inverse standard "
            f"deviation; compute them with ReduceMean from the input instead"
        )
    dy = gradients[0]
    assert dy is not None
    x, scale, bias = op.operands[0], op.operands[1], op.input(2)
    sizes = shape(x)
    axis = op.attribute("axis") % len(sizes)
    row = sizes[axis:]
    if _is_per_row(scale, sizes, axis):
        of_row = _full(scale, row, build)
        dx, dscale = _through(op, dy, of_row, build)
        dscale = _narrow(dscale, scale, build)
    else:
        ones = _ones(scale, row, build)
        dx, _ = _through(op, build.onnx("Mul", dy, scale), ones, build)
        normal = build.result(_kept(op, x, ones, None))
        dscale = build.sum_to(build.onnx("Mul", dy, normal), scale)
    return [dx, dscale] if bias is None else [dx, dscale, build.sum_to(dy, bias)]


def _through(
    op: OnnxOp, dy: SSAValue, scale: SSAValue, build: GradientBuilder
) -> tuple[SSAValue, SSAValue]:
    """
    Returns the gradients of the input and the scale of a normalisation like `op`, with
    the scale `scale` and without a bias.
    """
    kept = _kept(op, op.operands[0], scale, None)
    build.add(kept)
    settings = {"axis": kept.axis, "epsilon": kept.epsilon}
    if isinstance(kept, RmsNormOp):
        fused = RmsNormGradOp(dy, kept.x, scale, kept.inverse, **settings)
    else:
        statistics = (kept.mean, kept.inverse)
        fused = LayerNormGradOp(dy, kept.x, scale, *statistics, **settings, dbias=None)
    build.add(fused)
    return fused.dx, fused.dscale


@onnx_gradient("InstanceNormalization")
def instance_normalization(
    op: OnnxOp, dy: SSAValue, build: GradientBuilder
) -> Gradients:
    """
    Gradient rule of InstanceNormalization, computed from the input and the scale as for
    a normalisation in groups with one channel each.
    """
    return _in_groups(op, shape(op.operands[0])[1], dy, build)


@onnx_gradient("GroupNormalization")
def group_normalization(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of GroupNormalization. The gradients are computed from the input and
    the scale.
    """
    return _in_groups(op, op.attribute("num_groups"), dy, build)


def _in_groups(
    op: OnnxOp, groups: int, dy: SSAValue, build: GradientBuilder
) -> Gradients:
    """
    Returns the gradients of a normalisation in `groups` groups of channels. The rule
    treats the op as a layer normalisation in which each row holds one group. Scale and
    bias have one number per channel.
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
