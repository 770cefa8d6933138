"""
LAMB (You et al. 2020, "Large Batch Optimization for Deep Learning"), in two ops. The
norms of whole parameters are computed between the two ops: devices that hold parts of a
parameter add up their sums of squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import TensorType, i64
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from distir.dialects.formula import Expr, sqrt, where
from distir.dialects.train_ops.base import F64, Types, like
from distir.dialects.train_ops.checks import check_type
from distir.dialects.train_ops.optimizers import (
    DirectionalUpdateOp,
    UpdateOp,
    adam_moments,
    check_below_one,
)


@irdl_op_definition
class LambDirectionOp(UpdateOp):
    """
    The direction of a step of LAMB: the direction of Adam, with weight decay. `step` is
    the number of steps done so far, and `t = step + 1`.

    - `exp_avg = beta1 * exp_avg + (1 - beta1) * gradient`
    - `exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * gradient * gradient`
    - `ratio = exp_avg / (1 - beta1 ** t) / (sqrt(exp_avg_sq / (1 - beta2 ** t)) +
      epsilon)`
    - `direction = ratio + weight_decay * parameter`
    """

    name = "train.lamb_direction"
    TORCH_MODULE: ClassVar[str] = "lamb"
    IS_WHOLE: ClassVar[bool] = False
    REPLACED: ClassVar[Sequence[int | None]] = (None, 2, 3)
    TYPES: ClassVar[Types] = dict.fromkeys(("exp_avg", "exp_avg_sq"), like("parameter"))

    parameter = operand_def(TensorType)
    gradient = operand_def(TensorType)
    exp_avg = operand_def(TensorType)
    exp_avg_sq = operand_def(TensorType)
    step = operand_def(TensorType)
    weight_decay = prop_def(F64)
    beta1 = prop_def(F64)
    beta2 = prop_def(F64)
    epsilon = prop_def(F64)
    direction = result_def(TensorType)
    new_exp_avg = result_def(TensorType)
    new_exp_avg_sq = result_def(TensorType)

    @staticmethod
    def formula(
        parameter: Expr,
        gradient: Expr,
        exp_avg: Expr,
        exp_avg_sq: Expr,
        step: Expr,
        *,
        weight_decay: Expr | float,
        beta1: float,
        beta2: float,
        epsilon: float,
    ) -> tuple[Expr, ...]:
        time = step.number() + 1
        g = gradient.like(parameter)
        exp_avg, exp_avg_sq, denominator = adam_moments(
            g, exp_avg, exp_avg_sq, time, beta1=beta1, beta2=beta2, epsilon=epsilon
        )
        ratio = exp_avg / denominator * (1 / (1 - beta1**time))
        return ratio + weight_decay * parameter, exp_avg, exp_avg_sq

    def verify_(self) -> None:
        self.verify_pair(self.parameter, self.gradient)
        check_type(self, "step", self.step, TensorType(i64, []))
        check_below_one(self, beta1=self.beta1, beta2=self.beta2)


@irdl_op_definition
class LambOp(DirectionalUpdateOp):
    """
    One step of LAMB along the direction `gradient`. `parameter_squares` and
    `gradient_squares` are the sums of the squares of all elements of the two tensors.
    The new parameter is

        parameter - learning_rate * trust * gradient

    where `trust` is `sqrt(parameter_squares / gradient_squares)`, or 1 if one of the
    two is zero.
    """

    name = "train.lamb"
    TORCH_MODULE: ClassVar[str] = "lamb"

    parameter = operand_def(TensorType)
    gradient = operand_def(TensorType)
    parameter_squares = operand_def(TensorType)
    gradient_squares = operand_def(TensorType)
    learning_rate = prop_def(F64)
    new_parameter = result_def(TensorType)

    @staticmethod
    def formula(
        parameter: Expr,
        gradient: Expr,
        parameter_squares: Expr,
        gradient_squares: Expr,
        *,
        learning_rate: Expr | float,
    ) -> Expr:
        divisor = where(gradient_squares > 0, gradient_squares, 1.0)
        trust = sqrt(parameter_squares / divisor)
        trust = where(gradient_squares > 0, trust, 1.0)
        trust = where(parameter_squares > 0, trust, 1.0)
        moved = parameter - trust * learning_rate * gradient.like(parameter)
        return moved.like(parameter)

    def verify_(self) -> None:
        self.verify_pair(self.parameter, self.gradient)


OPS = [LambDirectionOp, LambOp]
