"""The gradient of cumulative products."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import TensorType, UnitAttr
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.base import I64, TrainOp, Types, like
from distir.dialects.train_ops.checks import check_float, checked_axis


@irdl_op_definition
class CumProdGradOp(TrainOp):
    """
    The gradient of `onnx.CumProd` along `axis`. From y_j = x_0 x_1 ... x_j follows

        dx_i = sum over j >= i of dy_j times the product of the x_k, k <= j, other than x_i

    The op computes this without a division by zero. With `exclusive`, y_j leaves out
    x_j. With `reverse`, products begin at the end. All values have the same shape.
    """

    name = "train.cumprod_grad"
    FACTORS: ClassVar[str] = (
        "[*a@dimension, k, *b], [*a, k, *b] -> [*a, k, *b] keep k linear 0"
    )
    TORCH: ClassVar[str] = (
        "cumprod_grad({*}, {axis}, exclusive={exclusive:flag}, reverse={reverse:flag})"
    )
    TORCH_MODULE: ClassVar[str] = "cumulative"

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    axis = prop_def(I64)
    exclusive = opt_prop_def(UnitAttr)
    reverse = opt_prop_def(UnitAttr)
    dx = result_def(TensorType)

    TYPES: ClassVar[Types] = {"dy": like("x"), "dx": like("x")}

    @property
    def dimension(self) -> int:
        """The index of the axis, counted from 0."""
        return checked_axis(self, self.axis.value.data, len(shape_of(self.x)))

    def verify_(self) -> None:
        check_float(self, "x", self.x)
        _ = self.dimension
        super().verify_()


OPS = [CumProdGradOp]
