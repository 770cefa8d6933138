"""Gradients of activation functions that ONNX has as one op."""

from __future__ import annotations

from xdsl.dialects.builtin import Float32Type, FloatAttr, StringAttr, TensorType, f32
from xdsl.ir import SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.train_ops.base import TrainOp
from distir.dialects.train_ops.checks import check_like


@irdl_op_definition
class GeluGradOp(TrainOp):
    """
    The gradient of y = x * P(x), elementwise; `dy`, `x` and `dx` of one type. With
    `approximate = "none"`, P is the normal distribution function and

        dx = dy * (P(x) + x * exp(-x * x / 2) / sqrt(2 * pi))

    With "tanh", P(x) = (1 + tanh(u)) / 2, u = sqrt(2 / pi) * (x + 0.044715 * x^3) and

        dx = dy * (P(x) + x / 2 * (1 - tanh(u)^2) * sqrt(2 / pi) * (1 + 0.134145 * x^2))
    """

    name = "train.gelu_grad"

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    approximate = prop_def(StringAttr)
    dx = result_def(TensorType)

    def __init__(self, dy: SSAValue, x: SSAValue, approximate: str):
        super().__init__(
            operands=[dy, x],
            properties={"approximate": StringAttr(approximate)},
            result_types=[x.type],
        )

    def verify_(self) -> None:
        check_like(self, "dy", self.dy, self.x)
        check_like(self, "dx", self.dx, self.x)
        if self.approximate.data not in ("none", "tanh"):
            raise VerifyException(
                f'{self.name}: approximate is "{self.approximate.data}", expected '
                f'"none" or "tanh"'
            )


@irdl_op_definition
class SwishGradOp(TrainOp):
    """
    The gradient of y = x * s, s = sigmoid(alpha * x), elementwise; SiLU for alpha = 1:

        dx = dy * s * (1 + alpha * x * (1 - s))

    `dy`, `x` and `dx` are of one type.
    """

    name = "train.swish_grad"

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    alpha = prop_def(FloatAttr[Float32Type])
    dx = result_def(TensorType)

    def __init__(self, dy: SSAValue, x: SSAValue, alpha: float):
        super().__init__(
            operands=[dy, x],
            properties={"alpha": FloatAttr(alpha, f32)},
            result_types=[x.type],
        )

    def verify_(self) -> None:
        check_like(self, "dy", self.dy, self.x)
        check_like(self, "dx", self.dx, self.x)


OPS = [GeluGradOp, SwishGradOp]
