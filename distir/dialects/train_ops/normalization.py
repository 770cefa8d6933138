"""Normalisation layers that keep their statistics, and their gradients."""

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

from distir.dialects.tensors import element_type, shape_of
from distir.dialects.train_ops.base import F32, I64, TrainOp, Types, like
from distir.dialects.train_ops.checks import (
    accumulation_type,
    check_element_type,
    check_shape,
    check_type,
    checked_axis,
)


class NormalizingOp(TrainOp):
    """
    Base of layers that normalise the dimensions of `x` from `axis` on, and of their
    gradients. `scale` has the shape of these dimensions. A statistic has the shape of `x`
    with ones in their place, and elements of f32 (f64 for f64).
    """

    TORCH_MODULE: ClassVar[str] = "trained_normalization"
    COST_CLASS: ClassVar[str] = "normalization"

    ACTIVATIONS: ClassVar[tuple[int, ...]] = (0,)
    """
    The positions of the activations among the operands: the result's gradient first, if there
    is one, then x, then statistics.
    """

    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    axis = prop_def(I64)
    epsilon = prop_def(F32)

    @property
    def dimension(self) -> int:
        """The index of the first normalised dimension."""
        return checked_axis(self, self.axis.value.data, len(shape_of(self.x)))

    def verify_(self) -> None:
        check_shape(self, "scale", self.scale, shape_of(self.x)[self.dimension :])
        super().verify_()

    def check_like_result(self, name: str, value: SSAValue) -> None:
        """Raises VerifyException unless a tensor has the type of the layer's result."""
        check_shape(self, name, value, shape_of(self.x))
        check_element_type(self, name, value, element_type(self.scale))

    def check_statistic(self, name: str, value: SSAValue) -> None:
        """Raises VerifyException unless a tensor has one number for each row of `x`."""
        check_type(self, name, value, statistic_type(self.x, self.dimension))


def statistic_type(x: SSAValue, axis: int) -> TensorType:
    """Returns the type of a statistic of the dimensions of `x` from `axis` on."""
    sizes = shape_of(x)
    axis %= len(sizes)
    shape = (*sizes[:axis], *(1 for _ in sizes[axis:]))
    return TensorType(accumulation_type(x), shape)


def _result_types(
    x: SSAValue, scale: SSAValue, axis: int, statistics: tuple[str, ...]
) -> dict[str, TensorType]:
    """Returns the types of the results of a layer by name."""
    found = dict.fromkeys(statistics, statistic_type(x, axis))
    return {"y": TensorType(element_type(scale), shape_of(x)), **found}


@irdl_op_definition
class LayerNormOp(NormalizingOp):
    """
    y = (x - mean) * inverse * scale + bias, with `mean` that of x and `inverse` the inverse
    standard deviation, 1 / sqrt(var(x) + epsilon), over the dimensions from `axis` on.
    `bias` is like `scale`, and may be left out.
    """

    name = "train.layer_norm"
    FACTORS: ClassVar[str] = (
        "[*r@dimension, *c], [*c], [*c] -> [*r, *c], [*r, *?], [*r, *?] keep c"
    )
    TORCH: ClassVar[str] = "layer_norm({*}, epsilon={epsilon:decimal})"

    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    bias = opt_operand_def(TensorType)
    y = result_def(TensorType)
    mean = result_def(TensorType)
    inverse = result_def(TensorType)

    TYPES: ClassVar[Types] = {"bias": like("scale")}

    def __init__(
        self,
        x: SSAValue,
        scale: SSAValue,
        bias: SSAValue | None = None,
        *,
        axis: int,
        epsilon: float,
    ):
        """Makes the op from its operands; its result types follow."""
        types = _result_types(x, scale, axis, ("mean", "inverse"))
        super().__init__(x, scale, bias, axis=axis, epsilon=epsilon, **types)

    def verify_(self) -> None:
        super().verify_()
        self.check_like_result("y", self.y)
        self.check_statistic("mean", self.mean)
        self.check_statistic("inverse", self.inverse)


@irdl_op_definition
class RmsNormOp(NormalizingOp):
    """
    y = x * inverse * scale, with `inverse` = 1 / sqrt(mean(x * x) + epsilon) over the
    dimensions from `axis` on. `x` may have other elements than `scale` and `y`.
    """

    name = "train.rms_norm"
    FACTORS: ClassVar[str] = "[*r@dimension, *c], [*c] -> [*r, *c], [*r, *?] keep c"
    TORCH: ClassVar[str] = "rms_norm({*}, epsilon={epsilon:decimal})"
    KEEPS_ZEROS: ClassVar[bool] = True

    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    y = result_def(TensorType)
    inverse = result_def(TensorType)

    def __init__(self, x: SSAValue, scale: SSAValue, *, axis: int, epsilon: float):
        """Makes the op from its operands; its result types follow."""
        types = _result_types(x, scale, axis, ("inverse",))
        super().__init__(x, scale, axis=axis, epsilon=epsilon, **types)

    def verify_(self) -> None:
        super().verify_()
        self.check_like_result("y", self.y)
        self.check_statistic("inverse", self.inverse)


class NormGradOp(NormalizingOp):
    """
    Base of the gradients of `train.layer_norm` and `train.rms_norm`, from the statistics
    that these keep. `dy` is the gradient of `y`; `dx` is like `x`, `dscale` like `scale`.
    """

    dy = operand_def(TensorType)
    inverse = operand_def(TensorType)
    dx = result_def(TensorType)
    dscale = result_def(TensorType)

    TYPES: ClassVar[Types] = {"dx": like("x"), "dscale": like("scale")}

    def verify_(self) -> None:
        self.check_like_result("dy", self.dy)
        self.check_statistic("inverse", self.inverse)
        super().verify_()


@irdl_op_definition
class LayerNormGradOp(NormGradOp):
    """
    The gradient of `train.layer_norm`. With n = (x - mean) * inverse and g = dy * scale,

        dx = inverse * (g - mean(g) - n * mean(g * n))
        dscale = sum(dy * n) and dbias = sum(dy), over the dimensions before `axis`

    `dbias` may be left out.
    """

    name = "train.layer_norm_grad"
    FACTORS: ClassVar[str] = (
        "[*r@dimension, *c], [*r, *c], [*c], [*r, *?], [*r, *?] "
        "-> [*r, *c], [*c], [*c] keep c linear 0"
    )
    ACTIVATIONS: ClassVar[tuple[int, ...]] = (0, 1, 3, 4)

    # A class's own values come before those of its base.
    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    mean = operand_def(TensorType)
    inverse = operand_def(TensorType)
    dx = result_def(TensorType)
    dscale = result_def(TensorType)
    dbias = opt_result_def(TensorType)

    TYPES: ClassVar[Types] = {**NormGradOp.TYPES, "dbias": like("scale")}

    def verify_(self) -> None:
        self.check_statistic("mean", self.mean)
        super().verify_()


@irdl_op_definition
class RmsNormGradOp(NormGradOp):
    """
    The gradient of `train.rms_norm`. With n = x * inverse and g = dy * scale,

        dx = inverse * (g - n * mean(g * n))
        dscale = sum(dy * n) over the dimensions before `axis`
    """

    name = "train.rms_norm_grad"
    FACTORS: ClassVar[str] = (
        "[*r@dimension, *c], [*r, *c], [*c], [*r, *?] -> [*r, *c], [*c] keep c linear 0"
    )
    TORCH: ClassVar[str] = "rms_norm_grad({*})"
    KEEPS_ZEROS: ClassVar[bool] = True
    ACTIVATIONS: ClassVar[tuple[int, ...]] = (0, 1, 3)

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    inverse = operand_def(TensorType)


OPS: list[type[Any]] = [LayerNormOp, RmsNormOp, LayerNormGradOp, RmsNormGradOp]
