"""Gradients of the normalisation layers."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_result_def,
    prop_def,
    result_def,
)

from distir.dialects.train_ops.base import F32, I64, TrainOp, Types, like
from distir.dialects.train_ops.checks import (
    check_element_type,
    check_shape,
    checked_axis,
    element_type,
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
    axis = prop_def(I64)
    epsilon = prop_def(F32)
    dx = result_def(TensorType)
    dscale = result_def(TensorType)

    TYPES: ClassVar[Types] = {"dx": like("x"), "dscale": like("scale")}

    @property
    def dimension(self) -> int:
        """The index of the first normalised dimension."""
        return checked_axis(self, self.axis.value.data, len(shape_of(self.x)))

    def verify_(self) -> None:
        check_shape(self, "dy", self.dy, shape_of(self.x))
        check_element_type(self, "dy", self.dy, element_type(self.scale))
        check_shape(self, "scale", self.scale, shape_of(self.x)[self.dimension :])
        super().verify_()


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

    TYPES: ClassVar[Types] = {**NormGradOp.TYPES, "dbias": like("scale")}


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
