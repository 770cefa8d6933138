"""
The statistics and gradients of batch normalisation: y = n * scale + bias with n = (x - mean) * r and
r = 1 / sqrt(variance + epsilon), over x of shape [batch, channels, *space]. Everything but
`x` and its gradients has one number per channel. What is summed over batch and space and
what is computed per element are two ops, so that a split batch needs only the sums of
its parts to be added up.
"""

from __future__ import annotations

from xdsl.dialects.builtin import (
    Float32Type,
    FloatAttr,
    IntegerAttr,
    TensorType,
    f32,
    i64,
)
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.train_ops.base import TrainOp
from distir.dialects.train_ops.checks import check_like, check_shape, shape_of


def _check_channels(op: IRDLOperation, x: SSAValue, **values: SSAValue) -> None:
    shape = shape_of(x)
    if len(shape) < 2:
        raise VerifyException(
            f"{op.name}: x has {len(shape)} dimensions, expected at least 2"
        )
    for name, value in values.items():
        check_shape(op, name, value, shape[1:2])


def _check_count(op: IRDLOperation, count: IntegerAttr) -> None:
    if count.value.data < 1:
        raise VerifyException(f"{op.name}: count must be positive")


@irdl_op_definition
class BatchNormVarianceOp(TrainOp):
    """
    The variance of each channel about a given mean, of `count` elements each, in the
    type of `mean`: variance = sum((x - mean)^2) / count.
    """

    name = "train.batch_norm_variance"

    x = operand_def(TensorType)
    mean = operand_def(TensorType)
    count = prop_def(IntegerAttr.constr(i64))
    variance = result_def(TensorType)

    def __init__(self, x: SSAValue, mean: SSAValue, count: int):
        super().__init__(
            operands=[x, mean],
            properties={"count": IntegerAttr(count, i64)},
            result_types=[mean.type],
        )

    def verify_(self) -> None:
        _check_channels(self, self.x, mean=self.mean)
        check_like(self, "variance", self.variance, self.mean)
        _check_count(self, self.count)


@irdl_op_definition
class BatchNormSumsOp(TrainOp):
    """
    The gradients of scale and bias, sums over batch and space, in the type of `mean`:

        dscale = sum(dy * n), dbias = sum(dy)
    """

    name = "train.batch_norm_sums"

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    mean = operand_def(TensorType)
    variance = operand_def(TensorType)
    epsilon = prop_def(FloatAttr[Float32Type])
    dscale = result_def(TensorType)
    dbias = result_def(TensorType)

    def __init__(
        self,
        dy: SSAValue,
        x: SSAValue,
        mean: SSAValue,
        variance: SSAValue,
        epsilon: float,
    ):
        super().__init__(
            operands=[dy, x, mean, variance],
            properties={"epsilon": FloatAttr(epsilon, f32)},
            result_types=[mean.type, mean.type],
        )

    def verify_(self) -> None:
        check_like(self, "dy", self.dy, self.x)
        _check_channels(self, self.x, mean=self.mean)
        check_like(self, "variance", self.variance, self.mean)
        check_like(self, "dscale", self.dscale, self.mean)
        check_like(self, "dbias", self.dbias, self.mean)


@irdl_op_definition
class BatchNormInputGradOp(TrainOp):
    """
    The gradient of the input where mean and variance are those of `x` itself, from the
    whole sums over `count` elements per channel:

        dx = scale * r * (dy - dbias / count - n * dscale / count)
    """

    name = "train.batch_norm_input_grad"

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    mean = operand_def(TensorType)
    variance = operand_def(TensorType)
    dscale = operand_def(TensorType)
    dbias = operand_def(TensorType)
    epsilon = prop_def(FloatAttr[Float32Type])
    count = prop_def(IntegerAttr.constr(i64))
    dx = result_def(TensorType)

    def __init__(
        self,
        dy: SSAValue,
        x: SSAValue,
        scale: SSAValue,
        mean: SSAValue,
        variance: SSAValue,
        dscale: SSAValue,
        dbias: SSAValue,
        epsilon: float,
        count: int,
    ):
        super().__init__(
            operands=[dy, x, scale, mean, variance, dscale, dbias],
            properties={
                "epsilon": FloatAttr(epsilon, f32),
                "count": IntegerAttr(count, i64),
            },
            result_types=[x.type],
        )

    def verify_(self) -> None:
        check_like(self, "dy", self.dy, self.x)
        _check_channels(self, self.x, scale=self.scale, mean=self.mean)
        for name in ("variance", "dscale", "dbias"):
            check_like(self, name, getattr(self, name), self.mean)
        check_like(self, "dx", self.dx, self.x)
        _check_count(self, self.count)


OPS = [BatchNormVarianceOp, BatchNormSumsOp, BatchNormInputGradOp]
