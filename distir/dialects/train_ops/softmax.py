"""Gradients of softmax and of its logarithm."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from distir.dialects.formula import Expr, exp
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.base import I64, FormulaOp, Types, like
from distir.dialects.train_ops.checks import checked_axis


class SoftmaxFamilyGradOp(FormulaOp):
    """
    Base of the gradients of ops that normalise along `axis`. `dy` and `y` are the
    gradient of the result and the result itself, `dx` the gradient of the input; all
    of one shape and element type.
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
        """The index of the normalised dimension."""
        return checked_axis(self, self.axis.value.data, len(shape_of(self.y)))


@irdl_op_definition
class SoftmaxGradOp(SoftmaxFamilyGradOp):
    """The gradient of y = softmax(x): dx = y * (dy - sum(dy * y) along axis)."""

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
    """The gradient of y = log(softmax(x)): dx = dy - exp(y) * sum(dy along axis)."""

    name = "train.log_softmax_grad"
    GRADIENT_OF: ClassVar[str] = "LogSoftmax"
    TORCH: ClassVar[str] = (
        "torch.ops.aten._log_softmax_backward_data({*}, {op.dimension}, {1}.dtype)"
    )

    @staticmethod
    def formula(dy: Expr, y: Expr, *, axis: int) -> Expr:
        return dy - exp(y) * dy.sum(axis, keepdims=True)


OPS = [SoftmaxGradOp, LogSoftmaxGradOp]
