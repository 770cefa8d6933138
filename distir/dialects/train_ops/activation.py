"""
Gradients of activation functions that are one op in ONNX, including softmax and
log-softmax.
"""

from __future__ import annotations

import math
from typing import ClassVar

from xdsl.dialects.builtin import StringAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from distir.dialects.formula import Expr, absolute, erf, exp, tanh, where
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.base import F32, I64, FormulaOp, Types, like
from distir.dialects.train_ops.checks import checked_axis


class ActivationGradOp(FormulaOp):
    """
    Base of the gradients of activation functions that work element by element. All
    values have the same type.
    """

    IS_ELEMENTWISE: ClassVar[bool] = True

    dy = operand_def(TensorType)
    x = operand_def(TensorType)
    dx = result_def(TensorType)

    TYPES: ClassVar[Types] = {"dy": like("x")}


@irdl_op_definition
class GeluGradOp(ActivationGradOp):
    """
    The gradient of GELU, y = x * P(x). With `approximate = "none"`, P is the
    distribution function of the standard normal distribution, and

        dx = dy * (P(x) + x * exp(-x * x / 2) / sqrt(2 * pi))

    With "tanh", P(x) = (1 + tanh(u)) / 2, u = sqrt(2 / pi) * (x + 0.044715 * x^3), and

        dx = dy * (P(x) + x / 2 * (1 - tanh(u)^2) * sqrt(2 / pi) * (1 + 0.134145 * x^2))
    """

    name = "train.gelu_grad"
    GRADIENT_OF: ClassVar[str] = "Gelu"
    TORCH: ClassVar[str] = (
        "torch.ops.aten.gelu_backward({*}, approximate={approximate})"
    )

    approximate = prop_def(StringAttr)

    @staticmethod
    def formula(dy: Expr, x: Expr, *, approximate: str) -> Expr:
        if approximate == "tanh":
            root = math.sqrt(2 / math.pi)
            slope = tanh(root * (x + 0.044715 * x * x * x))
            inner = root * (1 + 3 * 0.044715 * x * x)
            return dy * ((1 + slope) / 2 + x / 2 * (1 - slope * slope) * inner)
        density = exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return dy * ((1 + erf(x / math.sqrt(2))) / 2 + x * density)

    def verify_(self) -> None:
        super().verify_()
        if self.approximate.data not in ("none", "tanh"):
            raise VerifyException(
                f'{self.name}: approximate is "{self.approximate.data}", expected '
                f'"none" or "tanh"'
            )


@irdl_op_definition
class ReluGradOp(ActivationGradOp):
    """
    The gradient of y = max(x, 0): dx = dy where x > 0, else 0. The operand `x` may be y
    instead, which is positive at the same elements.
    """

    name = "train.relu_grad"
    GRADIENT_OF: ClassVar[str] = "Relu"
    FROM_RESULT: ClassVar[bool] = True
    TORCH: ClassVar[str] = "torch.ops.aten.threshold_backward({*}, 0)"

    @staticmethod
    def formula(dy: Expr, x: Expr) -> Expr:
        return where(x > 0, dy, 0)


@irdl_op_definition
class SwishGradOp(ActivationGradOp):
    """
    The gradient of y = x * s with s = sigmoid(alpha * x), which is SiLU for alpha = 1:

        dx = dy * s * (1 + alpha * x * (1 - s))
    """

    name = "train.swish_grad"
    GRADIENT_OF: ClassVar[str] = "Swish"

    alpha = prop_def(F32)

    @staticmethod
    def formula(dy: Expr, x: Expr, *, alpha: float) -> Expr:
        # The hyperbolic tangent does not overflow; an exponential would.
        sigmoid = (1 + tanh(alpha * x / 2)) / 2
        return dy * sigmoid * (1 + alpha * x * (1 - sigmoid))


@irdl_op_definition
class ShrinkGradOp(ActivationGradOp):
    """
    The gradient of y = shrink(x), which is 0 between -lambd and lambd, and x plus or
    minus a constant elsewhere. The gradient of its input is

        dx = dy where |x| > lambd, else 0
    """

    name = "train.shrink_grad"
    GRADIENT_OF: ClassVar[str] = "Shrink"
    TORCH: ClassVar[str] = "torch.ops.aten.hardshrink_backward({*}, {lambd})"

    lambd = prop_def(F32)

    @staticmethod
    def formula(dy: Expr, x: Expr, *, lambd: float) -> Expr:
        return where(absolute(x) > lambd, dy, 0)


class SoftmaxFamilyGradOp(FormulaOp):
    """
    Base of the gradients of ops that normalise along `axis`. `y` is the op's result,
    `dy` the gradient of the result, and `dx` the gradient of the input. All three have
    the same shape and element type.
    """

    COST_CLASS: ClassVar[str] = "normalization"
    FROM_RESULT: ClassVar[bool] = True

    dy = operand_def(TensorType)
    y = operand_def(TensorType)
    axis = prop_def(I64)
    dx = result_def(TensorType)

    TYPES: ClassVar[Types] = {"dy": like("y")}

    @property
    def dimension(self) -> int:
        """The index of the normalised dimension, counted from 0."""
        return checked_axis(self, self.axis.value.data, len(shape_of(self.y)))


@irdl_op_definition
class SoftmaxGradOp(SoftmaxFamilyGradOp):
    """
    The gradient of y = softmax(x): dx = y * (dy - sum(dy * y)), with the sum along
    `axis`.
    """

    name = "train.softmax_grad"
    GRADIENT_OF: ClassVar[str] = "Softmax"
    TORCH: ClassVar[str] = (
        "torch.ops.aten._softmax_backward_data({*}, {op.dimension}, {1}.dtype)"
    )

    @staticmethod
    def formula(dy: Expr, y: Expr, *, axis: int) -> Expr:
        return y * (dy - (dy * y).sum(axis, keepdims=True))


@irdl_op_definition
class LogSoftmaxGradOp(SoftmaxFamilyGradOp):
    """
    The gradient of y = log(softmax(x)): dx = dy - exp(y) * sum(dy), with the sum along
    `axis`.
    """

    name = "train.log_softmax_grad"
    GRADIENT_OF: ClassVar[str] = "LogSoftmax"
    TORCH: ClassVar[str] = (
        "torch.ops.aten._log_softmax_backward_data({*}, {op.dimension}, {1}.dtype)"
    )

    @staticmethod
    def formula(dy: Expr, y: Expr, *, axis: int) -> Expr:
        return dy - exp(y) * dy.sum(axis, keepdims=True)


OPS = [
    GeluGradOp,
    ReluGradOp,
    SwishGradOp,
    ShrinkGradOp,
    SoftmaxGradOp,
    LogSoftmaxGradOp,
]
