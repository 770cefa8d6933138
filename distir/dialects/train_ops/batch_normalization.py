"""
The statistics and gradients of batch normalisation.

Batch normalisation is y = n * scale + bias, with n = (x - mean) * r and r = 1 /
sqrt(variance + epsilon), over x of shape `[batch, channels, *space]`. All values but
`x`, `y` and their gradients have one number per channel. One op sums over batch and
space, and another op computes each element. If the batch is split, devices need to add
up only the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import IntegerAttr, TensorType
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from distir.dialects.formula import Expr, sqrt
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import F32, I64, FormulaOp, Types, like
from distir.dialects.train_ops.checks import check_shape, check_type


def _per_channel(value: Expr, x: Expr) -> Expr:
    """
    Returns `value`, one number per channel, expanded to align with the dimensions of
    `x`.
    """
    return value.expanded(*range(1, len(x.shape) - 1))


def _over(x: Expr) -> tuple[int, ...]:
    """
    Returns the indices of the batch dimension and the spatial dimensions of `x` [batch,
    channels, *space].
    """
    return 0, *range(2, len(x.shape))


def _inverse_root(variance: Expr, x: Expr, epsilon: float) -> Expr:
    return 1 / sqrt(_per_channel(variance, x) + epsilon)


class BatchNormOp(FormulaOp):
    """Base of the ops of batch normalisation. The class verifies their operands."""

    TORCH_MODULE: ClassVar[str] = "batch_norm_gradients"

    def _verify(self, x: SSAValue, mean: SSAValue) -> None:
        shape = shape_of(x)
        if len(shape) < 2:
            raise VerifyException(
                f"{self.name}: x has {len(shape)} dimensions, expected at least 2"
            )
        check_shape(self, "mean", mean, shape[1:2])
        count = self.properties.get("count")
        if isinstance(count, IntegerAttr) and count.value.data < 1:
            raise VerifyException(f"{self.name}: count must be positive")
        super().verify_()


@irdl_op_definition
class BatchNormVarianceOp(BatchNormOp):
    """
    The variance of each channel of `x` about a given mean, in the type of `mean`:
    variance = sum((x - mean)^2) / count. `count` is the number of elements per channel.
    """

    name = "train.batch_norm_variance"
    TORCH: ClassVar[str] = "variance({*}, {count})"

    x = operand_def(TensorType)
    mean = operand_def(TensorType)
    count = prop_def(I64)
    variance = result_def(TensorType)

    @staticmethod
    def formula(x: Expr, mean: Expr, *, count: int) -> Expr:
        centered = x - _per_channel(mean, x)
        return ((centered * centered).sum(_over(x)) / count).like(mean)

    def verify_(self) -> None:
        self._verify(self.x, self.mean)


@irdl_op_definition
class BatchNormSumsOp(BatchNormOp):
    """
    The gradients of scale and bias, as sums over batch and space, in the type of
    `mean`, where n = (x - mean) / sqrt(variance + epsilon):

        dscale = sum(dy * n), dbias = sum(dy)
    """

    name = "train.batch_norm_sums"
    TORCH: ClassVar[str] = "sums({*}, {epsilon})"

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    mean = operand_def(TensorType)
    variance = operand_def(TensorType)
    epsilon = prop_def(F32)
    dscale = result_def(TensorType)
    dbias = result_def(TensorType)

    TYPES: ClassVar[Types] = {"dy": like("x"), "variance": like("mean")}

    def verify_(self) -> None:
        self._verify(self.x, self.mean)

    @staticmethod
    def formula(
        dy: Expr, x: Expr, mean: Expr, variance: Expr, *, epsilon: float
    ) -> tuple[Expr, ...]:
        normal = (x - _per_channel(mean, x)) * _inverse_root(variance, x, epsilon)
        sums = (dy * normal).sum(_over(x)), dy.sum(_over(x))
        return tuple(value.like(mean) for value in sums)


@irdl_op_definition
class BatchNormGradOp(BatchNormOp):
    """
    The gradients of batch normalisation with given statistics, which do not depend on
    `x`: `dx` for the input, and `dscale` and `dbias` as sums over batch and space, in
    the type of `mean`. With r = 1 / sqrt(variance + epsilon) and n = (x - mean) * r,

        dx = scale * r * dy, dscale = sum(dy * n), dbias = sum(dy)
    """

    name = "train.batch_norm_grad"
    TORCH: ClassVar[str] = "gradients({*}, {epsilon:decimal})"

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    mean = operand_def(TensorType)
    variance = operand_def(TensorType)
    epsilon = prop_def(F32)
    dx = result_def(TensorType)
    dscale = result_def(TensorType)
    dbias = result_def(TensorType)

    TYPES: ClassVar[Types] = {"dy": like("x"), "variance": like("mean")}

    def verify_(self) -> None:
        check_shape(self, "scale", self.scale, shape_of(self.mean))
        self._verify(self.x, self.mean)

    @staticmethod
    def formula(
        dy: Expr, x: Expr, scale: Expr, mean: Expr, variance: Expr, *, epsilon: float
    ) -> tuple[Expr, ...]:
        inverse = _inverse_root(variance, x, epsilon)
        normal = (x - _per_channel(mean, x)) * inverse
        dx = dy * (_per_channel(scale, x) * inverse)
        sums = (dy * normal).sum(_over(x)), dy.sum(_over(x))
        return dx.like(x), *(value.like(mean) for value in sums)


@irdl_op_definition
class BatchNormInputGradOp(BatchNormOp):
    """
    The gradient of the input of batch normalisation with the mean and variance of `x`
    itself. `dscale` and `dbias` are complete sums, and `count` is the number of
    elements per channel. With r = 1 / sqrt(variance + epsilon) and n = (x - mean) * r,

        dx = scale * r * (dy - dbias / count - n * dscale / count)
    """

    name = "train.batch_norm_input_grad"
    TORCH: ClassVar[str] = "input_grad({*}, {epsilon}, {count})"
    PARTIAL_OPERANDS: ClassVar[Sequence[str] | None] = ("dy", "dscale", "dbias")

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    mean = operand_def(TensorType)
    variance = operand_def(TensorType)
    dscale = operand_def(TensorType)
    dbias = operand_def(TensorType)
    epsilon = prop_def(F32)
    count = prop_def(I64)
    dx = result_def(TensorType)

    TYPES: ClassVar[Types] = {
        "dy": like("x"),
        **dict.fromkeys(("variance", "dscale", "dbias"), like("mean")),
    }

    def verify_(self) -> None:
        check_shape(self, "scale", self.scale, shape_of(self.mean))
        self._verify(self.x, self.mean)

    @staticmethod
    def formula(
        dy: Expr,
        x: Expr,
        scale: Expr,
        mean: Expr,
        variance: Expr,
        dscale: Expr,
        dbias: Expr,
        *,
        epsilon: float,
        count: int,
    ) -> Expr:
        inverse = _inverse_root(variance, x, epsilon)
        normal = (x - _per_channel(mean, x)) * inverse
        dscale, dbias = _per_channel(dscale, x), _per_channel(dbias, x)
        centered = dy - dbias / count - normal * (dscale / count)
        return (_per_channel(scale, x) * inverse * centered).like(x)


class GhostNormOp(FormulaOp):
    """
    Base of ghost batch normalisation ("Train longer, generalize better", 2017) and its
    gradient. Ghost batch normalisation normalises each part of the batch with the
    part's own statistics. The samples of `x` form `groups` parts of equal size, one
    after the other. Each statistic is [groups, channels].
    """

    TORCH_MODULE: ClassVar[str] = "batch_norm_gradients"

    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    groups = prop_def(I64)
    epsilon = prop_def(F32)

    def check_statistic(self, name: str, value: SSAValue) -> None:
        """
        Raises VerifyException unless `value`, called `name` in the message, has one
        number per part and channel and the element type of `scale`.
        """
        shape = [self.groups.value.data, *shape_of(self.scale)]
        check_type(self, name, value, TensorType(element_type(self.scale), shape))

    def verify_(self) -> None:
        shape = shape_of(self.x)
        if len(shape) < 2:
            raise VerifyException(
                f"{self.name}: x has {len(shape)} dimensions, expected at least 2"
            )
        groups = self.groups.value.data
        if groups < 1 or shape[0] % groups:
            raise VerifyException(
                f"{self.name}: {shape[0]} samples cannot be {groups} equal parts"
            )
        check_shape(self, "scale", self.scale, shape[1:2])
        super().verify_()


def _over_part(parts: Expr) -> tuple[int, ...]:
    """
    Returns the indices of the sample dimension and the spatial dimensions of `parts`
    [groups, samples, channels, *space].
    """
    return 1, *range(3, len(parts.shape))


def _of_parts(value: Expr, parts: Expr) -> Expr:
    """
    Returns `value` [groups, channels], expanded to align with the dimensions of
    `parts`.
    """
    return value.expanded(1, *range(3, len(parts.shape)))


@irdl_op_definition
class GhostBatchNormOp(GhostNormOp):
    """
    Ghost batch normalisation: y = n * scale + bias, with n = (x - mean) * inverse.
    `mean` and `inverse` = 1 / sqrt(var(x) + epsilon) are statistics of each channel in
    each part of the batch. PyTorch computes the same if each device uses the statistics
    of its own samples of each micro-batch.
    """

    name = "train.ghost_batch_norm"
    TORCH: ClassVar[str] = "ghost_norm({*}, {groups}, {epsilon:decimal})"

    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    bias = operand_def(TensorType)
    y = result_def(TensorType)
    mean = result_def(TensorType)
    inverse = result_def(TensorType)

    TYPES: ClassVar[Types] = {"bias": like("scale")}

    @staticmethod
    def formula(
        x: Expr, scale: Expr, bias: Expr, *, groups: int, epsilon: float
    ) -> tuple[Expr, ...]:
        parts = x.divided(0, groups)
        over = _over_part(parts)
        mean = parts.mean(over)
        centered = parts - _of_parts(mean, parts)
        inverse = 1 / sqrt((centered * centered).mean(over) + epsilon)
        normal = (centered * _of_parts(inverse, parts)).joined(0)
        y = normal * _per_channel(scale, x) + _per_channel(bias, x)
        return y.like(x), mean.like(scale), inverse.like(scale)


@irdl_op_definition
class GhostBatchNormGradOp(GhostNormOp):
    """
    The gradients of `train.ghost_batch_norm`, from the statistics of each part of the
    batch. With n = (x - mean) * inverse,

        dscale = sum(dy * n), dbias = sum(dy), over all parts of the batch,
        dx = scale * inverse * (dy - mean(dy) - n * mean(dy * n)), means over each part
    """

    name = "train.ghost_batch_norm_grad"
    TORCH: ClassVar[str] = "ghost_norm_grad({*}, {groups}, {epsilon:decimal})"

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    mean = operand_def(TensorType)
    inverse = operand_def(TensorType)
    dx = result_def(TensorType)
    dscale = result_def(TensorType)
    dbias = result_def(TensorType)

    TYPES: ClassVar[Types] = {"dy": like("x")}

    def verify_(self) -> None:
        self.check_statistic("mean", self.mean)
        self.check_statistic("inverse", self.inverse)
        super().verify_()

    @staticmethod
    def formula(
        dy: Expr, x: Expr, scale: Expr, mean: Expr, inverse: Expr, *, groups: int
    ) -> tuple[Expr, ...]:
        parts, incoming = x.divided(0, groups), dy.divided(0, groups)
        over = _over_part(parts)
        inverse = _of_parts(inverse, parts)
        normal = (parts - _of_parts(mean, parts)) * inverse
        means, slopes = incoming.mean(over), (incoming * normal).mean(over)
        centered = incoming - _of_parts(means, parts)
        centered = centered - normal * _of_parts(slopes, parts)
        dx = (inverse * centered).joined(0) * _per_channel(scale, x)
        sums = (incoming * normal).sum((0, *over)), incoming.sum((0, *over))
        return dx.like(x), *(value.like(scale) for value in sums)


OPS = [
    BatchNormVarianceOp,
    BatchNormSumsOp,
    BatchNormGradOp,
    BatchNormInputGradOp,
    GhostBatchNormOp,
    GhostBatchNormGradOp,
]
