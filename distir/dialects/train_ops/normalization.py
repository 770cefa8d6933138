"""
Normalisation layers that keep their statistics for the backward pass, and their
gradients.
"""

from __future__ import annotations

from typing import Any, ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_result_def,
    prop_def,
    result_def,
)

from distir.dialects.formula import Expr, sqrt
from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import F32, I64, FormulaOp, Types, like
from distir.dialects.train_ops.checks import (
    accumulation_type,
    check_element_type,
    check_shape,
    check_type,
    checked_axis,
)


class NormalizingOp(FormulaOp):
    """
    Base of layers that normalise the dimensions of `x` from `axis` on, and of their
    gradients. `scale` has the shape of these dimensions. A statistic has the shape of
    `x` with size 1 in these dimensions, and elements of f32 (f64 for f64).
    """

    TORCH_MODULE: ClassVar[str] = "trained_normalization"
    COST_CLASS: ClassVar[str] = "normalization"

    ACTIVATIONS: ClassVar[tuple[int, ...]] = (0,)
    """
    The positions of the activations among the operands: first the result's gradient, if
    there is one, then `x`, then the statistics.
    """

    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    axis = prop_def(I64)
    epsilon = prop_def(F32)

    @property
    def dimension(self) -> int:
        """The index of the first normalised dimension, counted from 0."""
        return checked_axis(self, self.axis.value.data, len(shape_of(self.x)))

    def verify_(self) -> None:
        check_shape(self, "scale", self.scale, shape_of(self.x)[self.dimension :])
        super().verify_()

    def check_like_result(self, name: str, value: SSAValue) -> None:
        """
        Raises VerifyException unless `value` has the type of the layer's result. `name`
        is the value's name in the message.
        """
        check_shape(self, name, value, shape_of(self.x))
        check_element_type(self, name, value, element_type(self.scale))

    def check_statistic(self, name: str, value: SSAValue) -> None:
        """
        Raises VerifyException unless `value` has one number per row of `x`, in f64 for
        f64, else f32. `name` is the value's name in the message.
        """
        sizes, axis = shape_of(self.x), self.dimension
        shape = (*sizes[:axis], *(1 for _ in sizes[axis:]))
        check_type(self, name, value, TensorType(accumulation_type(self.x), shape))


def _rows_and_columns(x: Expr, axis: int) -> tuple[range, range]:
    """
    Returns the dimensions of `x` before `axis`, and the normalised dimensions from
    `axis` on.
    """
    rank = len(x.shape)
    return range(axis % rank), range(axis % rank, rank)


@irdl_op_definition
class LayerNormOp(NormalizingOp):
    """
    Layer normalisation: y = (x - mean) * inverse * scale + bias. `mean` is the mean of
    x and `inverse` the inverse standard deviation, 1 / sqrt(var(x) + epsilon), both
    over the dimensions from `axis` on. `bias` is optional and has the type of `scale`.
    """

    name = "train.layer_norm"
    TORCH: ClassVar[str] = "layer_norm({*}, epsilon={epsilon:decimal})"

    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    bias = opt_operand_def(TensorType)
    y = result_def(TensorType)
    mean = result_def(TensorType)
    inverse = result_def(TensorType)

    TYPES: ClassVar[Types] = {"bias": like("scale")}

    @staticmethod
    def formula(
        x: Expr, scale: Expr, bias: Expr | None = None, *, axis: int, epsilon: float
    ) -> tuple[Expr, ...]:
        _, columns = _rows_and_columns(x, axis)
        x = x.wide()
        mean = x.mean(columns, keepdims=True)
        centered = x - mean
        variance = (centered * centered).mean(columns, keepdims=True)
        inverse = 1 / sqrt(variance + epsilon)
        y = centered * inverse * scale
        return (y if bias is None else y + bias).like(scale), mean, inverse


@irdl_op_definition
class RmsNormOp(NormalizingOp):
    """
    RMS normalisation: y = x * inverse * scale with `inverse` = 1 / sqrt(mean(x * x) +
    epsilon), over the dimensions from `axis` on. `y` has the element type of `scale`,
    which may differ from the element type of `x`.
    """

    name = "train.rms_norm"
    TORCH: ClassVar[str] = "rms_norm({*}, epsilon={epsilon:decimal})"
    KEEPS_ZEROS: ClassVar[bool] = True

    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    y = result_def(TensorType)
    inverse = result_def(TensorType)

    @staticmethod
    def formula(x: Expr, scale: Expr, *, axis: int, epsilon: float) -> tuple[Expr, ...]:
        _, columns = _rows_and_columns(x, axis)
        x = x.wide()
        square = (x * x).mean(columns, keepdims=True)
        inverse = 1 / sqrt(square + epsilon)
        return (x * inverse * scale).like(scale), inverse


class NormGradOp(NormalizingOp):
    """
    Base of the gradients of `train.layer_norm` and `train.rms_norm`, from the
    statistics that these ops keep. `dy` is the gradient of `y`. `dx` has the type of
    `x`, and `dscale` the type of `scale`.
    """

    dy = operand_def(TensorType)
    inverse = operand_def(TensorType)
    dx = result_def(TensorType)
    dscale = result_def(TensorType)

    def verify_(self) -> None:
        self.check_like_result("dy", self.dy)
        self.check_statistic("inverse", self.inverse)
        super().verify_()


@irdl_op_definition
class LayerNormGradOp(NormGradOp):
    """
    The gradient of `train.layer_norm`. With n = (x - mean) * inverse and g = dy *
    scale,

        dx = inverse * (g - mean(g) - n * mean(g * n))
        dscale = sum(dy * n) and dbias = sum(dy), over the dimensions before `axis`

    The result `dbias` is optional.
    """

    name = "train.layer_norm_grad"
    ACTIVATIONS: ClassVar[tuple[int, ...]] = (0, 1, 3, 4)

    # Declared here in full, as a class's own values come before those of its base.
    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    mean = operand_def(TensorType)
    inverse = operand_def(TensorType)
    dx = result_def(TensorType)
    dscale = result_def(TensorType)
    dbias = opt_result_def(TensorType)

    def verify_(self) -> None:
        self.check_statistic("mean", self.mean)
        super().verify_()

    @staticmethod
    def formula(
        dy: Expr, x: Expr, scale: Expr, mean: Expr, inverse: Expr, *, axis: int
    ) -> tuple[Expr, ...]:
        rows, columns = _rows_and_columns(x, axis)
        n = (x - mean) * inverse
        g = dy * scale
        slope = (g * n).mean(columns, keepdims=True)
        dx = inverse * (g - g.mean(columns, keepdims=True) - n * slope)
        return dx.like(x), (dy * n).sum(rows).like(scale), dy.sum(rows).like(scale)


@irdl_op_definition
class RmsNormGradOp(NormGradOp):
    """
    The gradient of `train.rms_norm`. With n = x * inverse and g = dy * scale,

        dx = inverse * (g - n * mean(g * n))
        dscale = sum(dy * n) over the dimensions before `axis`
    """

    name = "train.rms_norm_grad"
    TORCH: ClassVar[str] = "rms_norm_grad({*})"
    KEEPS_ZEROS: ClassVar[bool] = True
    ACTIVATIONS: ClassVar[tuple[int, ...]] = (0, 1, 3)

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    inverse = operand_def(TensorType)

    @staticmethod
    def formula(
        dy: Expr, x: Expr, scale: Expr, inverse: Expr, *, axis: int
    ) -> tuple[Expr, ...]:
        rows, columns = _rows_and_columns(x, axis)
        n = x * inverse
        g = dy * scale
        dx = inverse * (g - n * (g * n).mean(columns, keepdims=True))
        return dx.like(x), (dy * n).sum(rows).like(scale)


OPS: list[type[Any]] = [LayerNormOp, RmsNormOp, LayerNormGradOp, RmsNormGradOp]
