"""Gradient rules of softmax and of the normalisation layers: fused kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from xdsl.ir import SSAValue

from distir.dialects.onnx import OnnxOp
from distir.dialects.onnx_values import numpy_dtype
from distir.dialects.train_ops.normalization import LayerNormGradOp, RmsNormGradOp
from distir.dialects.train_ops.softmax import LogSoftmaxGradOp, SoftmaxGradOp
from distir.errors import DistIRError
from distir.gradients.rule import (
    GradientBuilder,
    Gradients,
    gradient_rule,
    onnx_gradient,
    shape,
)
from distir.program import describe


@onnx_gradient("Softmax")
def softmax(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """Needs the result."""
    gradient = SoftmaxGradOp(dy, op.results[0], axis=op.attribute("axis"))
    return [build.result(gradient)]


@onnx_gradient("LogSoftmax")
def log_softmax(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """Needs the result."""
    gradient = LogSoftmaxGradOp(dy, op.results[0], axis=op.attribute("axis"))
    return [build.result(gradient)]


def _is_per_row(scale: SSAValue, sizes: Sequence[int], axis: int) -> bool:
    """Whether a scale broadcasts against one row, not against rows among themselves."""
    have = shape(scale)
    extra = len(have) - (len(sizes) - axis)
    return extra <= 0 or prod(have[:extra]) == 1


def _full(value: SSAValue, sizes: Sequence[int], build: GradientBuilder) -> SSAValue:
    """A scale that broadcasts against one row, as wide as the row."""
    have = shape(value)
    if have == tuple(sizes):
        return value
    if len(have) > len(sizes):
        value = build.onnx("Reshape", value, build.integers(have[-len(sizes) :]))
    if shape(value) != tuple(sizes):
        value = build.onnx("Expand", value, build.integers(sizes))
    return value


def _narrow(gradient: SSAValue, target: SSAValue, build: GradientBuilder) -> SSAValue:
    """The inverse of `_full`, for a gradient."""
    if len(shape(target)) > len(shape(gradient)):
        padded = (1,) * (len(shape(target)) - len(shape(gradient))) + shape(gradient)
        gradient = build.onnx("Reshape", gradient, build.integers(padded))
    return build.sum_to(gradient, target)


def _ones(like: SSAValue, sizes: Sequence[int], build: GradientBuilder) -> SSAValue:
    return build.constant(np.ones(sizes, numpy_dtype(like.type.element_type)))  # pyright: ignore[reportAttributeAccessIssue]


@gradient_rule("onnx.LayerNormalization")
def layer_normalization(
    op: OnnxOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """Needs the input and the scale."""
    if any(g is not None for g in gradients[1:]):
        raise DistIRError(
            f"{describe(op)} has no gradient rule for its mean and inverse standard "
            f"deviation; compute them with ReduceMean from the input instead"
        )
    dy = gradients[0]
    assert dy is not None
    x, scale, bias = op.operands[0], op.operands[1], op.input(2)
    sizes = shape(x)
    axis, epsilon = op.attribute("axis") % len(sizes), op.attribute("epsilon")
    row = sizes[axis:]
    if _is_per_row(scale, sizes, axis):
        fused = LayerNormGradOp(
            *(dy, x, _full(scale, row, build)),
            axis=axis,
            epsilon=epsilon,
            **({"dbias": None} if bias is None else {}),
        )
        dx, dscale, *rest = build.add(fused).results
        dscale = _narrow(dscale, scale, build)
    else:
        ones = _ones(scale, row, build)
        scaled = build.onnx("Mul", dy, scale)
        dx = build.result(
            LayerNormGradOp(scaled, x, ones, axis=axis, epsilon=epsilon, dbias=None)
        )
        normal = build.onnx(
            "LayerNormalization",
            x,
            ones,
            axis=axis,
            epsilon=epsilon,
            stash_type=op.attribute("stash_type"),
        )
        dscale = build.sum_to(build.onnx("Mul", dy, normal), scale)
        rest = []
    if bias is None:
        return [dx, dscale]
    if rest and _is_per_row(bias, sizes, axis):
        return [dx, dscale, _narrow(rest[0], bias, build)]
    return [dx, dscale, build.sum_to(dy, bias)]


@onnx_gradient("RMSNormalization")
def rms_normalization(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """Needs the input and the scale."""
    x, scale = op.operands
    sizes = shape(x)
    axis, epsilon = op.attribute("axis") % len(sizes), op.attribute("epsilon")
    row = sizes[axis:]
    if _is_per_row(scale, sizes, axis):
        fused = RmsNormGradOp(
            dy, x, _full(scale, row, build), axis=axis, epsilon=epsilon
        )
        dx, dscale = build.add(fused).results
        return [dx, _narrow(dscale, scale, build)]
    ones = _ones(scale, row, build)
    scaled = build.onnx("Mul", dy, scale)
    dx = build.add(RmsNormGradOp(scaled, x, ones, axis=axis, epsilon=epsilon)).results[
        0
    ]
    normal = build.onnx(
        "RMSNormalization",
        x,
        ones,
        axis=axis,
        epsilon=epsilon,
        stash_type=op.attribute("stash_type"),
    )
    return [dx, build.sum_to(build.onnx("Mul", dy, normal), scale)]
