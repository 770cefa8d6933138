"""Gradients of activation functions that are one op in ONNX."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import StringAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from distir.dialects.train_ops.base import F32, TrainOp, Types, like


class ActivationGradOp(TrainOp):
    """Base of the gradients of functions of one number; all values are of one type."""

    FACTORS: ClassVar[str] = "[*d], [*d] -> [*d] linear 0"
    IS_ELEMENTWISE: ClassVar[bool] = True

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    dx = result_def(TensorType)

    TYPES: ClassVar[Types] = {"dy": like("x"), "dx": like("x")}


@irdl_op_definition
class GeluGradOp(ActivationGradOp):
    """
    The gradient of y = x * P(x). With `approximate = "none"`, P is the normal distribution
    function and

        dx = dy * (P(x) + x * exp(-x * x / 2) / sqrt(2 * pi))

    With "tanh", P(x) = (1 + tanh(u)) / 2, u = sqrt(2 / pi) * (x + 0.044715 * x^3) and

        dx = dy * (P(x) + x / 2 * (1 - tanh(u)^2) * sqrt(2 / pi) * (1 + 0.134145 * x^2))
    """

    name = "train.gelu_grad"
    TORCH: ClassVar[str] = (
        "torch.ops.aten.gelu_backward({*}, approximate={approximate})"
    )

    approximate = prop_def(StringAttr)

    def verify_(self) -> None:
        super().verify_()
        if self.approximate.data not in ("none", "tanh"):
            raise VerifyException(
                f'{self.name}: approximate is "{self.approximate.data}", expected '
                f'"none" or "tanh"'
            )


@irdl_op_definition
class ReluGradOp(ActivationGradOp):
    """The gradient of y = max(x, 0): dx = dy where x > 0, else 0; y may stand for x."""

    name = "train.relu_grad"
    TORCH: ClassVar[str] = "torch.ops.aten.threshold_backward({*}, 0)"


@irdl_op_definition
class SwishGradOp(ActivationGradOp):
    """
    The gradient of y = x * s, s = sigmoid(alpha * x); SiLU for alpha = 1:

        dx = dy * s * (1 + alpha * x * (1 - s))
    """

    name = "train.swish_grad"

    alpha = prop_def(F32)


OPS = [GeluGradOp, ReluGradOp, SwishGradOp]
