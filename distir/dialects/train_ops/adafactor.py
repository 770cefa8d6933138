"""
Adafactor (Shazeer and Stern 2018, "Adafactor: Adaptive Learning Rates with Sublinear
Memory Cost"), in steps. Between the steps are sums over rows, over columns and over
whole parameters; devices that hold parts of a parameter add up their sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import TensorType, UnitAttr, i64
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.formula import Expr, maximum, minimum, sqrt
from distir.dialects.tensors import rank_of
from distir.dialects.train_ops.base import F64, FormulaOp
from distir.dialects.train_ops.checks import check_float, check_type
from distir.dialects.train_ops.optimizers import DirectionalUpdateOp


@irdl_op_definition
class FactorSumsOp(FormulaOp):
    """
    Sums of the squares of the elements of `gradient` [..., m, n]: over each row, `rows`
    [..., m, 1], and over each column, `columns` [..., 1, n]. The sums are f64 for f64,
    else f32.
    """

    name = "train.factor_sums"
    COST_CLASS: ClassVar[str] = "optimizer"
    PARTIAL_OPERANDS: ClassVar[Sequence[str] | None] = ()
    TORCH: ClassVar[str] = "factor_sums({0}, {result:dtype})"
    TORCH_MODULE: ClassVar[str] = "adafactor"

    gradient = operand_def(TensorType)
    rows = result_def(TensorType)
    columns = result_def(TensorType)

    @staticmethod
    def formula(gradient: Expr) -> tuple[Expr, ...]:
        wide = gradient.wide()
        squares = wide * wide
        return squares.sum(-1, keepdims=True), squares.sum(-2, keepdims=True)

    def verify_(self) -> None:
        check_float(self, "gradient", self.gradient)
        if rank_of(self.gradient.type) < 2:
            raise VerifyException(
                f"{self.name}: gradient has {rank_of(self.gradient.type)} dimensions, "
                f"a matrix has 2"
            )
        super().verify_()


@irdl_op_definition
class SecondMomentOp(FormulaOp):
    """
    The running mean of squares in step `t = step + 1`. Each element of `sums` is a sum
    of `count` squares:

        moment + t ** beta2_decay * (sums / count - moment)
    """

    name = "train.second_moment"
    COST_CLASS: ClassVar[str] = "optimizer"
    PARTIAL_OPERANDS: ClassVar[Sequence[str] | None] = ()
    TORCH: ClassVar[str] = "second_moment({*}, {count}, {beta2_decay})"
    TORCH_MODULE: ClassVar[str] = "adafactor"

    moment = operand_def(TensorType)
    sums = operand_def(TensorType)
    step = operand_def(TensorType)
    count = prop_def(F64)
    beta2_decay = prop_def(F64)
    new_moment = result_def(TensorType)

    @staticmethod
    def formula(
        moment: Expr, sums: Expr, step: Expr, *, count: float, beta2_decay: float
    ) -> Expr:
        weight = (step.number() + 1.0) ** beta2_decay
        mean = (sums * (1 / count)).like(moment)
        return moment + weight * (mean - moment)

    def verify_(self) -> None:
        check_float(self, "moment", self.moment)
        check_type(self, "step", self.step, TensorType(i64, []))
        super().verify_()


@irdl_op_definition
class FactoredDirectionOp(FormulaOp):
    """
    The gradient [..., m, n] divided by the root of its estimated second moment. The
    estimate is the product of the means of rows [..., m, 1] and of columns [..., 1, n],
    divided by the mean of all elements. `total` [..., 1, 1] is the sum of `rows`, and
    `count` is the number of rows:

        estimate = rows * columns / max(total / count, epsilon)
        direction = gradient / sqrt(max(estimate, epsilon ** 2))
    """

    name = "train.factored_direction"
    COST_CLASS: ClassVar[str] = "optimizer"
    PARTIAL_OPERANDS: ClassVar[Sequence[str] | None] = ()
    TORCH: ClassVar[str] = "factored_direction({*}, {count}, {epsilon})"
    TORCH_MODULE: ClassVar[str] = "adafactor"

    gradient = operand_def(TensorType)
    rows = operand_def(TensorType)
    columns = operand_def(TensorType)
    total = operand_def(TensorType)
    count = prop_def(F64)
    epsilon = prop_def(F64)
    direction = result_def(TensorType)

    @staticmethod
    def formula(
        gradient: Expr,
        rows: Expr,
        columns: Expr,
        total: Expr,
        *,
        count: float,
        epsilon: float,
    ) -> Expr:
        mean = maximum(total * (1 / count), epsilon)
        estimate = maximum(rows * columns / mean, epsilon * epsilon)
        return gradient.like(rows) / sqrt(estimate)

    def verify_(self) -> None:
        check_float(self, "gradient", self.gradient)
        super().verify_()


@irdl_op_definition
class AdafactorOp(DirectionalUpdateOp):
    """
    One step of Adafactor along the direction `gradient`. `step` is the number of steps
    done so far, and `t = step + 1`. The root mean square `rms` of a tensor follows from
    the sum of its squares and the number of its elements, `count`:

    - `rate = learning_rate`, or with `relative_step` `max(epsilon, rms(parameter)) *
      min(learning_rate, 1 / sqrt(t))`
    - `clip = max(1, rms(gradient) / clip_threshold)`
    - `parameter * (1 - learning_rate * weight_decay) - rate / clip * gradient`
    """

    name = "train.adafactor"
    TORCH_MODULE: ClassVar[str] = "adafactor"

    parameter = operand_def(TensorType)
    gradient = operand_def(TensorType)
    parameter_squares = operand_def(TensorType)
    gradient_squares = operand_def(TensorType)
    step = operand_def(TensorType)
    learning_rate = prop_def(F64)
    weight_decay = prop_def(F64)
    clip_threshold = prop_def(F64)
    epsilon = prop_def(F64)
    count = prop_def(F64)
    relative_step = opt_prop_def(UnitAttr)
    new_parameter = result_def(TensorType)

    @staticmethod
    def formula(
        parameter: Expr,
        gradient: Expr,
        parameter_squares: Expr,
        gradient_squares: Expr,
        step: Expr,
        *,
        learning_rate: Expr | float,
        weight_decay: Expr | float,
        clip_threshold: float,
        epsilon: float,
        count: float,
        relative_step: bool = False,
    ) -> Expr:
        clip = maximum(sqrt(gradient_squares / count) * (1 / clip_threshold), 1.0)
        rate = learning_rate / clip
        if relative_step:
            bound = minimum(1 / sqrt(step.number() + 1.0), learning_rate)
            rate = maximum(sqrt(parameter_squares / count), epsilon) * bound / clip
        kept = parameter * (1 - learning_rate * weight_decay)
        return (kept - rate * gradient.like(parameter)).like(parameter)

    def verify_(self) -> None:
        self.verify_pair(self.parameter, self.gradient)
        check_type(self, "step", self.step, TensorType(i64, []))


OPS = [FactorSumsOp, SecondMomentOp, FactoredDirectionOp, AdafactorOp]
