"""Gradients of softmax and of its logarithm."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.base import I64, TrainOp, Types, like
from distir.dialects.train_ops.checks import checked_axis


class SoftmaxFamilyGradOp(TrainOp):
    """
    Base of the gradients of ops that normalise along `axis`. `dy` and `y` are the
    gradient of the result and the result itself, `dx` the gradient of the input; all
    of one shape and element type.
    """

    FACTORS: ClassVar[str] = (
        "[*a@dimension, k, *b], [*a, k, *b] -> [*a, k, *b] keep k linear 0"
    )
    COST_CLASS: ClassVar[str] = "normalization"

    dy = operand_def(TensorType)
    y = operand_def(TensorType)
    axis = prop_def(I64)
    dx = result_def(TensorType)

    TYPES: ClassVar[Types] = {"dy": like("y"), "dx": like("y")}

    @property
    def dimension(self) -> int:
        """The index of the normalised dimension."""
        return checked_axis(self, self.axis.value.data, len(shape_of(self.y)))

    def verify_(self) -> None:
        super().verify_()
        _ = self.dimension


@irdl_op_definition
class SoftmaxGradOp(SoftmaxFamilyGradOp):
    """The gradient of y = softmax(x): dx = y * (dy - sum(dy * y) along axis)."""

    name = "train.softmax_grad"
    TORCH: ClassVar[str] = (
        "torch.ops.aten._softmax_backward_data({*}, {op.dimension}, {1}.dtype)"
    )


@irdl_op_definition
class LogSoftmaxGradOp(SoftmaxFamilyGradOp):
    """The gradient of y = log(softmax(x)): dx = dy - exp(y) * sum(dy along axis)."""

    name = "train.log_softmax_grad"
    TORCH: ClassVar[str] = (
        "torch.ops.aten._log_softmax_backward_data({*}, {op.dimension}, {1}.dtype)"
    )


OPS = [SoftmaxGradOp, LogSoftmaxGradOp]
