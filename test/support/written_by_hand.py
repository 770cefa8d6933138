"""
What ops computed before they were formulas: functions on arrays that were written by hand. The
test of formulas compares with them, bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from distir.dialects.train_ops.activation import (
    GeluGradOp,
    LogSoftmaxGradOp,
    ReluGradOp,
    ShrinkGradOp,
    SoftmaxGradOp,
    SwishGradOp,
)
from distir.dialects.train_ops.batch_normalization import (
    BatchNormGradOp,
    BatchNormInputGradOp,
    BatchNormSumsOp,
    BatchNormVarianceOp,
    GhostBatchNormGradOp,
    GhostBatchNormOp,
    GhostNormOp,
)
from distir.dialects.train_ops.dropout import DropoutGradOp
from distir.dialects.train_ops.losses import (
    CrossEntropyGradOp,
    CrossEntropyOp,
    CrossEntropyPartGradOp,
    CrossEntropySumOp,
    ExponentialSumOp,
    LabelLogitOp,
    LabelLossOp,
    LogitMaximumOp,
)
from distir.dialects.train_ops.normalization import (
    LayerNormGradOp,
    LayerNormOp,
    NormalizingOp,
    RmsNormGradOp,
    RmsNormOp,
)
from distir.dialects.train_ops.optimizers import (
    AdamFamilyOp,
    AdamOp,
    AdamWOp,
    SgdOp,
    SquareSumOp,
    UpdateOp,
)
from distir.interpreters.kernels import erf

Array = npt.NDArray[Any]
Computation = Callable[..., Array | tuple[Array, ...]]

BY_HAND: dict[str, Computation] = {}
"""By the name of the op."""


def computes(*op_types: type[Any]) -> Callable[[Computation], Computation]:
    """Registers what ops computed."""

    def register(function: Computation) -> Computation:
        BY_HAND.update(dict.fromkeys((op.name for op in op_types), function))
        return function

    return register


@computes(GeluGradOp)
def gelu_gradient(op: GeluGradOp, dy: Array, x: Array) -> Array:
    if op.approximate.data == "tanh":
        root = math.sqrt(2 / math.pi)
        tanh = np.tanh(root * (x + 0.044715 * x * x * x))
        inner = root * (1 + 3 * 0.044715 * x * x)
        slope = (1 + tanh) / 2 + x / 2 * (1 - tanh * tanh) * inner
    else:
        density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        slope = (1 + erf(x / math.sqrt(2))) / 2 + x * density
    return dy * slope


@computes(ReluGradOp)
def relu_gradient(op: ReluGradOp, dy: Array, x: Array) -> Array:
    return np.where(x > 0, dy, dy.dtype.type(0))


@computes(SwishGradOp)
def swish_gradient(op: SwishGradOp, dy: Array, x: Array) -> Array:
    alpha = x.dtype.type(op.alpha.value.data)
    # The hyperbolic tangent does not overflow, an exponential would.
    sigmoid = (1 + np.tanh(alpha * x / 2)) / 2
    return dy * sigmoid * (1 + alpha * x * (1 - sigmoid))


@computes(ShrinkGradOp)
def shrink_gradient(op: ShrinkGradOp, dy: Array, x: Array) -> Array:
    return np.where(np.abs(x) > op.lambd.value.data, dy, dy.dtype.type(0))


@computes(SoftmaxGradOp)
def softmax_gradient(op: SoftmaxGradOp, dy: Array, y: Array) -> Array:
    return y * (dy - (dy * y).sum(op.dimension, keepdims=True))


@computes(LogSoftmaxGradOp)
def log_softmax_gradient(op: LogSoftmaxGradOp, dy: Array, y: Array) -> Array:
    return dy - np.exp(y) * dy.sum(op.dimension, keepdims=True)


def _row_mean(x: Array, axis: int) -> Array:
    """Returns the mean over the dimensions from `axis` on, which remain with size 1."""
    return x.mean(tuple(range(axis, x.ndim)), keepdims=True)


def _inverse_norm(op: NormalizingOp, square: Array) -> Array:
    epsilon = square.dtype.type(op.epsilon.value.data)
    return 1 / np.sqrt(square + epsilon)


@computes(LayerNormOp)
def layer_norm(
    op: LayerNormOp, x: Array, scale: Array, bias: Array | None = None
) -> tuple[Array, ...]:
    mean = _row_mean(x, op.dimension)
    centered = x - mean
    inverse = _inverse_norm(op, _row_mean(centered * centered, op.dimension))
    y = centered * inverse * scale
    return (y if bias is None else y + bias), mean, inverse


@computes(RmsNormOp)
def rms_norm(op: RmsNormOp, x: Array, scale: Array) -> tuple[Array, ...]:
    inverse = _inverse_norm(op, _row_mean(x * x, op.dimension))
    return x * inverse * scale, inverse


@computes(LayerNormGradOp)
def layer_norm_gradient(
    op: LayerNormGradOp, dy: Array, x: Array, scale: Array, mean: Array, inverse: Array
) -> tuple[Array, ...]:
    axis = op.dimension
    rows = tuple(range(axis))
    n = (x - mean) * inverse
    g = dy * scale
    dx = inverse * (g - _row_mean(g, axis) - n * _row_mean(g * n, axis))
    dbias = () if op.dbias is None else (dy.sum(rows),)
    return dx, (dy * n).sum(rows), *dbias


@computes(RmsNormGradOp)
def rms_norm_gradient(
    op: RmsNormGradOp, dy: Array, x: Array, scale: Array, inverse: Array
) -> tuple[Array, ...]:
    axis = op.dimension
    n = x * inverse
    g = dy * scale
    dx = inverse * (g - n * _row_mean(g * n, axis))
    return dx, (dy * n).sum(tuple(range(axis)))


def _per_channel(value: Array, x: Array) -> Array:
    """Returns one number per channel, aligned with the dimensions of `x`."""
    return value.reshape(-1, *[1] * (x.ndim - 2))


def _inverse_root(variance: Array, epsilon: float) -> Array:
    return 1 / np.sqrt(variance + variance.dtype.type(epsilon))


@computes(BatchNormVarianceOp)
def variance(op: BatchNormVarianceOp, x: Array, mean: Array) -> Array:
    centered = x - _per_channel(mean, x)
    total = (centered * centered).sum((0, *range(2, x.ndim)))
    return total / x.dtype.type(op.count.value.data)


@computes(BatchNormSumsOp)
def channel_sums(
    op: BatchNormSumsOp, dy: Array, x: Array, *values: Array
) -> tuple[Array, ...]:
    mean, variance = (_per_channel(v, x) for v in values)
    normal = (x - mean) * _inverse_root(variance, op.epsilon.value.data)
    over = (0, *range(2, x.ndim))
    return (dy * normal).sum(over), dy.sum(over)


@computes(BatchNormGradOp)
def batch_norm_gradients(
    op: BatchNormGradOp, dy: Array, x: Array, *values: Array
) -> tuple[Array, ...]:
    scale, mean, variance = (_per_channel(v, x) for v in values)
    inverse = _inverse_root(variance, op.epsilon.value.data)
    over = (0, *range(2, x.ndim))
    dscale = (dy * ((x - mean) * inverse)).sum(over)
    return dy * (scale * inverse), dscale, dy.sum(over)


@computes(BatchNormInputGradOp)
def input_gradient(
    op: BatchNormInputGradOp, dy: Array, x: Array, *values: Array
) -> Array:
    scale, mean, variance, dscale, dbias = (_per_channel(v, x) for v in values)
    inverse = _inverse_root(variance, op.epsilon.value.data)
    normal = (x - mean) * inverse
    count = x.dtype.type(op.count.value.data)
    return scale * inverse * (dy - dbias / count - normal * (dscale / count))


def _in_parts(op: GhostNormOp, x: Array) -> Array:
    """Returns an array as [groups, samples of a group, channels, *space]."""
    return x.reshape(op.groups.value.data, -1, *x.shape[1:])


def _of_parts(value: Array, x: Array) -> Array:
    """Returns one number per channel of each part, aligned with the dimensions of `x`."""
    return value.reshape(value.shape[0], 1, -1, *[1] * (x.ndim - 3))


@computes(GhostBatchNormOp)
def ghost_batch_norm(
    op: GhostBatchNormOp, x: Array, scale: Array, bias: Array
) -> tuple[Array, ...]:
    parts = _in_parts(op, x)
    over = (1, *range(3, parts.ndim))
    mean = parts.mean(over)
    centered = parts - _of_parts(mean, parts)
    inverse = _inverse_root((centered * centered).mean(over), op.epsilon.value.data)
    normal = (centered * _of_parts(inverse, parts)).reshape(x.shape)
    y = normal * _per_channel(scale, x) + _per_channel(bias, x)
    return y, mean, inverse


@computes(GhostBatchNormGradOp)
def ghost_batch_norm_gradients(
    op: GhostBatchNormGradOp,
    dy: Array,
    x: Array,
    scale: Array,
    mean: Array,
    inverse: Array,
) -> tuple[Array, ...]:
    parts, incoming = _in_parts(op, x), _in_parts(op, dy)
    over = (1, *range(3, parts.ndim))
    inverse = _of_parts(inverse, parts)
    normal = (parts - _of_parts(mean, parts)) * inverse
    along = incoming.mean(over), (incoming * normal).mean(over)
    means, slopes = (_of_parts(value, parts) for value in along)
    dx = (inverse * (incoming - means - normal * slopes)).reshape(x.shape)
    total = (0, 1, *range(3, parts.ndim))
    dscale, dbias = (incoming * normal).sum(total), incoming.sum(total)
    return dx * _per_channel(scale, x), dscale, dbias


def labels_that_count(op: LabelLossOp, labels: Array) -> tuple[Array, Array]:
    """
    Returns which labels count, and the labels with 0 for the others.
    """
    kept = np.ones(labels.shape, bool) if op.ignored is None else labels != op.ignored
    classes = np.where(kept, labels, 0)
    return kept, classes[..., None]


def _exponentials(logits: Array) -> tuple[Array, Array]:
    """Returns the logits less their maximum, and the exponentials of that."""
    shifted = logits - logits.max(-1, keepdims=True, initial=-np.inf)
    return shifted, np.exp(shifted)


@computes(CrossEntropyOp)
def cross_entropy(op: CrossEntropyOp, logits: Array, labels: Array) -> Array:
    kept, classes = labels_that_count(op, labels)
    shifted, exponentials = _exponentials(logits)
    chosen = np.take_along_axis(shifted, classes, -1)[..., 0]
    each = np.where(kept, np.log(exponentials.sum(-1)) - chosen, 0)
    return each.sum() * op.factor


@computes(CrossEntropyGradOp)
def cross_entropy_gradient(
    op: CrossEntropyGradOp, dloss: Array, logits: Array, labels: Array
) -> Array:
    kept, classes = labels_that_count(op, labels)
    _, exponentials = _exponentials(logits)
    dlogits = exponentials / exponentials.sum(-1, keepdims=True)
    chosen = np.take_along_axis(dlogits, classes, -1)
    np.put_along_axis(dlogits, classes, chosen - 1, -1)
    return dlogits * (kept[..., None] * (dloss * op.factor))


def _among(labels: Array, classes: int) -> tuple[Array, Array]:
    """
    Returns which labels are among the classes held here, and the labels with 0 for the
    others.
    """
    held = (labels >= 0) & (labels < classes)
    return held, np.where(held, labels, 0)[..., None]


@computes(LogitMaximumOp)
def maximum(op: LogitMaximumOp, logits: Array) -> Array:
    return logits.max(-1, initial=-np.inf)


@computes(ExponentialSumOp)
def total(op: ExponentialSumOp, logits: Array, maximum: Array) -> Array:
    return np.exp(logits - maximum[..., None]).sum(-1)


@computes(LabelLogitOp)
def chosen(op: LabelLogitOp, logits: Array, labels: Array) -> Array:
    held, classes = _among(labels, logits.shape[-1])
    found = np.take_along_axis(logits, classes, -1)[..., 0]
    return np.where(held, found, 0)


@computes(CrossEntropySumOp)
def loss(op: CrossEntropySumOp, *operands: Array) -> Array:
    maximum, total, chosen, labels = operands
    kept, _ = labels_that_count(op, labels)
    each = np.where(kept, np.log(total) - (chosen - maximum), 0)
    return each.sum() * op.factor


@computes(CrossEntropyPartGradOp)
def part_gradient(op: CrossEntropyPartGradOp, *operands: Array) -> Array:
    dloss, logits, labels, maximum, total = operands
    held, classes = _among(labels, logits.shape[-1])
    dlogits = np.exp(logits - maximum[..., None]) / total[..., None]
    chosen = np.take_along_axis(dlogits, classes, -1)
    np.put_along_axis(dlogits, classes, chosen - held[..., None], -1)
    kept = np.ones(labels.shape, bool) if op.ignored is None else labels != op.ignored
    return dlogits * (kept[..., None] * (dloss * op.factor))


def _settings(op: UpdateOp, given: Sequence[Array]) -> dict[str, float]:
    """
    Returns the hyper-parameters of an update; those that are operands have the given
    values.
    """
    names = op.given_settings
    return op.settings | {n: float(v) for n, v in zip(names, given, strict=True)}


@computes(AdamOp, AdamWOp)
def adam(op: AdamFamilyOp, *operands: Array) -> tuple[Array, ...]:
    parameter, gradient, exp_avg, exp_avg_sq, step, *given = operands
    gradient = gradient.astype(parameter.dtype)
    settings, time = _settings(op, given), int(step) + 1
    rate, decay = settings["learning_rate"], settings["weight_decay"]
    beta1, beta2 = settings["beta1"], settings["beta2"]
    if isinstance(op, AdamWOp):
        parameter = parameter * (1 - rate * decay)
    else:
        gradient = gradient + decay * parameter
    exp_avg = exp_avg + (1 - beta1) * (gradient - exp_avg)
    exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * gradient * gradient
    denominator = np.sqrt(exp_avg_sq) / sqrt(1 - beta2**time) + settings["epsilon"]
    parameter = parameter - rate / (1 - beta1**time) * exp_avg / denominator
    return parameter, exp_avg, exp_avg_sq


@computes(SgdOp)
def sgd(
    op: SgdOp, parameter: Array, gradient: Array, *others: Array
) -> tuple[Array, ...]:
    states = len(op.tensors) - 2
    buffers, settings = others[:states], _settings(op, others[states:])
    gradient = gradient.astype(parameter.dtype)
    gradient = gradient + settings["weight_decay"] * parameter
    if buffers:
        momentum = settings["momentum"]
        buffers = (momentum * buffers[0] + gradient,)
        ahead = momentum * buffers[0]
        gradient = buffers[0] if op.nesterov is None else gradient + ahead
    return parameter - settings["learning_rate"] * gradient, *buffers


@computes(SquareSumOp)
def square_sum(op: SquareSumOp, source: Array) -> Array:
    return np.square(source).sum()


@computes(DropoutGradOp)
def dropout_gradient(op: DropoutGradOp, dy: Array, mask: Array) -> Array:
    return np.where(mask, dy * dy.dtype.type(op.scale), dy.dtype.type(0))
