"""Gradient rules of convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from xdsl.ir import SSAValue

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.train_ops.convolution import (
    AveragePoolGradOp,
    ConvGradInputOp,
    ConvGradWeightOp,
    MaxPoolGradOp,
)
from distir.errors import DistIRError
from distir.gradients.rule import (
    GradientBuilder,
    Gradients,
    onnx_gradient,
    shape,
)
from distir.interpreters.window_kernels import TransposedWindows, Windows
from distir.program import describe


def _windows(op: OnnxOp, space: Sequence[int], kernel: Sequence[int]) -> dict[str, Any]:
    """
    Returns the strides, dilations and pads of an op, with all defaults filled in. The
    part of the windows that lies beyond the padding does not count as padding.
    """
    windows = Windows.of(op, space, kernel)
    begins, ends = zip(*windows.pads, strict=True)
    ends = [end - more for end, more in zip(ends, windows.beyond, strict=True)]
    return {
        "strides": list(windows.strides),
        "dilations": list(windows.dilations),
        "pads": [*begins, *ends],
    }


@onnx_gradient("Conv")
def convolution(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of Conv: one op computes the gradient of the input, and one op the
    gradient of the weight. The gradient of the bias is the sum of dy over all
    dimensions but channels.
    """
    x, weight = op.operands[:2]
    windows = _windows(op, shape(x)[2:], shape(weight)[2:])
    windows["group"] = op.attribute("group")
    dx = build.result(ConvGradInputOp(dy, weight, dx=x.type, **windows))
    dweight = build.result(ConvGradWeightOp(x, dy, dweight=weight.type, **windows))
    if len(op.operands) == 2:
        return [dx, dweight]
    axes = build.integers([0, *range(2, len(shape(dy)))])
    return [dx, dweight, build.onnx("ReduceSum", dy, axes, keepdims=0)]


@onnx_gradient("ConvTranspose")
def transposed_convolution(
    op: OnnxOp, dy: SSAValue, build: GradientBuilder
) -> Gradients:
    """
    Gradient rule of ConvTranspose, which is the gradient of a convolution with respect
    to the convolution's input. The gradient of the input is the convolution of dy. The
    gradient of the weight is the gradient of the convolution with respect to its
    weight. Raises DistIRError if the result is larger than the windows reach.
    """
    x, weight = op.operands[:2]
    kernel = shape(weight)[2:]
    forward = TransposedWindows.of(op, shape(x)[2:], kernel)
    ends = [
        reached - start - size
        for reached, start, size in zip(
            forward.extents, forward.starts, forward.sizes, strict=True
        )
    ]
    # Elements that `output_padding` adds behind all windows have no gradient.
    pads = [*forward.starts, *(max(end, 0) for end in ends)]
    if min(forward.starts) < 0:
        raise DistIRError(
            f"{describe(op)} has no gradient: its output_shape is larger than what its "
            f"windows reach; give it pads and output_padding instead"
        )
    windows: dict[str, Any] = {
        "strides": forward.strides,
        "dilations": forward.dilations,
        "pads": pads,
        "group": op.attribute("group"),
    }
    dx = build.onnx("Conv", dy, weight, kernel_shape=kernel, **windows)
    dweight = build.result(ConvGradWeightOp(dy, x, dweight=weight.type, **windows))
    if len(op.operands) == 2:
        return [dx, dweight]
    axes = build.integers([0, *range(2, len(shape(dy)))])
    return [dx, dweight, build.onnx("ReduceSum", dy, axes, keepdims=0)]


@onnx_gradient("MaxPool")
def max_pool(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of MaxPool. The ops search the input for the positions of the maxima
    again, so that the positions need not be kept.
    """
    (x,) = op.operands
    kernel = op.attribute("kernel_shape")
    windows = _windows(op, shape(x)[2:], kernel)
    grad = MaxPoolGradOp(dy, x, kernel_shape=kernel, **windows)
    return [build.result(grad)]


@onnx_gradient("AveragePool")
def average_pool(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """Gradient rule of AveragePool, which needs only the shape of the input."""
    (x,) = op.operands
    kernel = op.attribute("kernel_shape")
    grad = AveragePoolGradOp(
        dy,
        dx=x.type,
        kernel_shape=kernel,
        **_windows(op, shape(x)[2:], kernel),
        count_include_pad=bool(op.attribute("count_include_pad")),
    )
    return [build.result(grad)]


@onnx_gradient("GlobalAveragePool")
def global_average_pool(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """Gradient rule of GlobalAveragePool: every position gets the same share of dy."""
    (x,) = op.operands
    share = build.onnx("Div", dy, build.scalar(prod(shape(x)[2:]), dy))
    return [build.onnx("Expand", share, build.integers(shape(x)))]


@onnx_gradient("GlobalMaxPool")
def global_max_pool(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of GlobalMaxPool: the rule of MaxPool with one window over all spatial
    dimensions.
    """
    (x,) = op.operands
    space = shape(x)[2:]
    ones = [1] * len(space)
    grad = MaxPoolGradOp(
        *(dy, x),
        kernel_shape=space,
        strides=ones,
        dilations=ones,
        pads=[0] * (2 * len(space)),
    )
    return [build.result(grad)]
