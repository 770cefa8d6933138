"""Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms")."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def

from distir.dialects.formula import Expr, sign
from distir.dialects.train_ops.base import F64, Types, like
from distir.dialects.train_ops.optimizers import UpdateOp, check_below_one


@irdl_op_definition
class LionOp(UpdateOp):
    """
    One step of Lion, which moves every element by the same amount:

    - `direction = sign(beta1 * exp_avg + (1 - beta1) * gradient)`
    - `parameter * (1 - learning_rate * weight_decay) - learning_rate * direction`
    - `exp_avg = beta2 * exp_avg + (1 - beta2) * gradient`
    """

    name = "train.lion"
    TORCH_MODULE: ClassVar[str] = "lion"
    TYPES: ClassVar[Types] = {"exp_avg": like("parameter")}

    parameter = operand_def(TensorType)
    gradient = operand_def(TensorType)
    exp_avg = operand_def(TensorType)
    learning_rate = prop_def(F64)
    weight_decay = prop_def(F64)
    beta1 = prop_def(F64)
    beta2 = prop_def(F64)
    new_parameter = result_def(TensorType)
    new_exp_avg = result_def(TensorType)

    @staticmethod
    def formula(
        parameter: Expr,
        gradient: Expr,
        exp_avg: Expr,
        *,
        learning_rate: Expr | float,
        weight_decay: Expr | float,
        beta1: float,
        beta2: float,
    ) -> tuple[Expr, ...]:
        g = gradient.like(parameter)
        direction = sign(beta1 * exp_avg + (1 - beta1) * g)
        kept = parameter * (1 - learning_rate * weight_decay)
        return kept - learning_rate * direction, beta2 * exp_avg + (1 - beta2) * g

    def verify_(self) -> None:
        self.verify_pair(self.parameter, self.gradient)
        check_below_one(self, beta1=self.beta1, beta2=self.beta2)


OPS = [LionOp]
