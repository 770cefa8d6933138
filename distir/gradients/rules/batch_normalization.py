"""The gradient rules of batch normalisation."""

from __future__ import annotations

from math import prod

from xdsl.ir import SSAValue

from distir.dialects.constants import direct_constant
from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import element_type
from distir.dialects.train_ops.batch_normalization import (
    BatchNormGradOp,
    BatchNormInputGradOp,
    BatchNormSumsOp,
    BatchNormVarianceOp,
    GhostBatchNormGradOp,
    GhostBatchNormOp,
)
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule, shape
from distir.program import describe


@gradient_rule("onnx.BatchNormalization")
def batch_normalization(
    op: OnnxOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """
    Gradient rule of BatchNormalization. The gradients are computed from the input and
    the scale; in inference, also from mean and variance. Raises DistIRError if a loss
    depends on the running statistics.
    """
    if any(g is not None for g in gradients[1:]):
        raise DistIRError(
            f"{describe(op)} has no gradient rule for its running mean and variance; a "
            f"loss cannot depend on them"
        )
    dy = gradients[0]
    assert dy is not None
    x, scale, bias, mean, variance = op.operands
    epsilon = op.attribute("epsilon")
    training = bool(op.attribute("training_mode"))
    if not training and not _is_variance_of(variance, x, mean):
        return _for_given_moments(op, dy, build)
    if training:
        mean, variance = moments(x, mean, build)
    sums = BatchNormSumsOp(dy, x, mean, variance, epsilon=epsilon)
    total_scale, total_bias = build.add(sums).results
    sizes = shape(x)
    fused = BatchNormInputGradOp(
        *(dy, x, scale, mean, variance, total_scale, total_bias),
        epsilon=epsilon,
        count=prod(sizes) // sizes[1],
    )
    found = _as(total_scale, scale, build), _as(total_bias, bias, build)
    return [build.result(fused), *found, None, None]


@gradient_rule("train.ghost_batch_norm")
def ghost_batch_normalization(
    op: GhostBatchNormOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """
    Gradient rule of `train.ghost_batch_norm`. The gradients are computed from the
    input, the scale and the statistics. Raises DistIRError if a loss depends on the
    statistics.
    """
    if any(g is not None for g in gradients[1:]):
        raise DistIRError(
            f"{describe(op)} has no gradient rule for its statistics; a loss cannot depend "
            f"on them"
        )
    dy = gradients[0]
    assert dy is not None
    fused = GhostBatchNormGradOp(
        *(dy, op.x, op.scale, op.mean, op.inverse), groups=op.groups, epsilon=op.epsilon
    )
    return build.add(fused).results


def _for_given_moments(op: OnnxOp, dy: SSAValue, build: GradientBuilder) -> Gradients:
    """
    Returns the gradients of a batch normalisation whose mean and variance are given and
    do not depend on the input.
    """
    x, scale, bias, mean, variance = op.operands
    epsilon = op.attribute("epsilon")
    fused = BatchNormGradOp(dy, x, scale, mean, variance, epsilon=epsilon)
    dx, dscale, dbias = build.add(fused).results
    # The derivative by the mean is minus that by x; the variance acts through r = (variance
    # + epsilon)^(-1/2).
    shifted = build.onnx("Add", variance, build.scalar(epsilon, variance))
    inverse = build.onnx("Reciprocal", build.onnx("Sqrt", shifted))
    wide_scale = _as(scale, variance, build)
    slope = build.onnx("Mul", wide_scale, inverse)
    dmean = build.onnx("Neg", build.onnx("Mul", dbias, slope))
    by_variance = build.onnx("Mul", build.onnx("Div", wide_scale, shifted), dscale)
    dvariance = build.onnx("Mul", by_variance, build.scalar(-0.5, by_variance))
    found = _as(dscale, scale, build), _as(dbias, bias, build)
    return [dx, *found, dmean, dvariance]


def _is_variance_of(variance: SSAValue, x: SSAValue, mean: SSAValue) -> bool:
    """
    Whether `variance` and `mean` are computed from `x` by the ops that
    `batch-statistics` writes.
    """
    owner, average = variance.owner, mean.owner
    if not isinstance(owner, BatchNormVarianceOp) or tuple(owner.operands) != (x, mean):
        return False
    if not isinstance(average, OnnxOp) or average.name != "onnx.ReduceMean":
        return False
    source = average.operands[0]
    cast = source.owner
    if isinstance(cast, OnnxOp) and cast.name == "onnx.CastLike":
        source = cast.operands[0]
    axes = average.input(1)
    over = None if axes is None else direct_constant(axes)
    rank = len(shape(x))
    return source is x and over is not None and list(over) == [0, *range(2, rank)]


def _as(value: SSAValue, like: SSAValue, build: GradientBuilder) -> SSAValue:
    """Returns `value` in the element type of `like`."""
    if element_type(value) == element_type(like):
        return value
    return build.onnx("CastLike", value, like)


def moments(
    x: SSAValue, like: SSAValue, build: GradientBuilder
) -> tuple[SSAValue, SSAValue]:
    """
    Returns the mean and variance of each channel of `x`, in the element type of `like`.
    The ops that compute them can be split over devices along the batch.
    """
    sizes = shape(x)
    axes = build.integers([0, *range(2, len(sizes))])
    mean = build.onnx("ReduceMean", _as(x, like, build), axes, keepdims=0)
    variance = BatchNormVarianceOp(x, mean, count=prod(sizes) // sizes[1])
    return mean, build.result(variance)
