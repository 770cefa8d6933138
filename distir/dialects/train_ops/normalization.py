"""Gradients of the normalisation layers."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    Float32Type,
    FloatAttr,
    IntegerAttr,
    TensorType,
    f32,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_result_def,
    prop_def,
    result_def,
)

from distir.dialects.train_ops.base import TrainOp
from distir.dialects.train_ops.checks import (
    check_element,
    check_like,
    check_shape,
    checked_axis,
    shape_of,
)


class NormGradOp(TrainOp):
    """
    Base of the gradients of layers that normalise the dimensions from `axis` on. `x` is
    the layer's input, `dy` the gradient of its result (both of one shape), `scale` has
    the shape of the normalised dimensions. Statistics are computed again from `x`, in
    f32 or wider. `dx` is like `x`, `dscale` like `scale`.
    """

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    scale = operand_def(TensorType)
    axis = prop_def(IntegerAttr.constr(i64))
    epsilon = prop_def(FloatAttr[Float32Type])
    dx = result_def(TensorType)
    dscale = result_def(TensorType)

    def __init__(
        self,
        dy: SSAValue,
        x: SSAValue,
        scale: SSAValue,
        axis: int,
        epsilon: float,
        more_results: Sequence[Attribute | Sequence[Attribute]] = (),
    ):
        super().__init__(
            operands=[dy, x, scale],
            properties={
                "axis": IntegerAttr(axis, i64),
                "epsilon": FloatAttr(epsilon, f32),
            },
            result_types=[x.type, scale.type, *more_results],
        )

    @property
    def dimension(self) -> int:
        """The index of the first normalised dimension."""
        return checked_axis(self, self.axis.value.data, len(shape_of(self.x)))

    def verify_(self) -> None:
        check_shape(self, "dy", self.dy, shape_of(self.x))
        check_element(self, "dy", self.dy, self.scale)
        check_shape(self, "scale", self.scale, shape_of(self.x)[self.dimension :])
        check_like(self, "dx", self.dx, self.x)
        check_like(self, "dscale", self.dscale, self.scale)


@irdl_op_definition
class LayerNormGradOp(NormGradOp):
    """
    The gradient of y = n * scale + bias, n = (x - mean(x)) / sqrt(var(x) + epsilon), with
    r the inverse standard deviation and g = dy * scale:

        dx = r * (g - mean(g) - n * mean(g * n))
        dscale = sum(dy * n) and dbias = sum(dy), over the dimensions before `axis`

    `dbias` may be left out.
    """

    name = "train.layer_norm_grad"

    # A class's own results come before those of its base.
    dx = result_def(TensorType)
    dscale = result_def(TensorType)
    dbias = opt_result_def(TensorType)

    def __init__(
        self,
        dy: SSAValue,
        x: SSAValue,
        scale: SSAValue,
        axis: int,
        epsilon: float,
        bias: bool = True,
    ):
        more = [[scale.type] if bias else []]
        super().__init__(dy, x, scale, axis, epsilon, more)

    def verify_(self) -> None:
        super().verify_()
        if self.dbias is not None:
            check_like(self, "dbias", self.dbias, self.scale)


@irdl_op_definition
class RmsNormGradOp(NormGradOp):
    """
    The gradient of y = n * scale, n = x * r, r = 1 / sqrt(mean(x * x) + epsilon), with
    g = dy * scale:

        dx = r * (g - n * mean(g * n))
        dscale = sum(dy * n) over the dimensions before `axis`

    `x` may have other elements than `dy` and `scale`.
    """

    name = "train.rms_norm_grad"


OPS = [LayerNormGradOp, RmsNormGradOp]
