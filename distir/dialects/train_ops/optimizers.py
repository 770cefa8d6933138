"""
Updates of one parameter, as PyTorch's `torch.optim` computes them, and what clipping
gradients by their global norm needs.

Every update is elementwise: a parameter, its gradient and its states split the same way
in any way, and ZeRO is a choice of layouts. The gradient may have narrower elements than
the parameter: in mixed precision the parameter is the f32 master copy, and a Cast behind
the update makes the narrow one.
"""

from __future__ import annotations

from math import isfinite
from typing import ClassVar

from xdsl.dialects.builtin import FloatAttr, TensorType, UnitAttr, i64
from xdsl.ir import SSAValue
from xdsl.irdl import (
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    opt_result_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.train_ops.base import F64, TrainOp, Types, like, total_of
from distir.dialects.train_ops.checks import (
    check_float,
    check_shape,
    check_type,
    shape_of,
)

STEP = "optimizer.step"
"""The name of the state that counts the steps done before."""


class UpdateOp(TrainOp):
    """Base of all updates; every one has operands `parameter` and `gradient`."""

    learning_rate = prop_def(F64)
    weight_decay = prop_def(F64)

    @property
    def settings(self) -> dict[str, float]:
        """The hyper-parameters: the properties that are numbers, by name."""
        return {
            name: value.value.data
            for name, value in self.properties.items()
            if isinstance(value, FloatAttr)
        }

    def _verify(self, parameter: SSAValue, gradient: SSAValue) -> None:
        check_float(self, "parameter", parameter)
        check_float(self, "gradient", gradient)
        check_shape(self, "gradient", gradient, shape_of(parameter))
        for name, value in self.settings.items():
            if not isfinite(value) or value < 0:
                raise VerifyException(
                    f"{self.name}: {name} is {value}, expected a number that is not "
                    f"negative"
                )
        super().verify_()


@irdl_op_definition
class SgdOp(UpdateOp):
    """
    One step of stochastic gradient descent.

    `g = gradient + weight_decay * parameter`; with a momentum buffer, zeros at first,
    `buffer = momentum * buffer + g` and then `g = buffer`, or with `nesterov`
    `g = g + momentum * buffer`; `parameter - learning_rate * g`.
    """

    name = "train.sgd"

    parameter = operand_def(TensorType)
    gradient = operand_def(TensorType)
    buffer = opt_operand_def(TensorType)
    momentum = opt_prop_def(F64)
    nesterov = opt_prop_def(UnitAttr)
    new_parameter = result_def(TensorType)
    new_buffer = opt_result_def(TensorType)

    assembly_format = (
        "$parameter `,` $gradient (`momentum` $buffer^)? attr-dict `:` "
        "functional-type(operands, results)"
    )

    TYPES: ClassVar[Types] = {
        "new_parameter": like("parameter"),
        "buffer": like("parameter"),
        "new_buffer": like("buffer"),
    }

    def verify_(self) -> None:
        self._verify(self.parameter, self.gradient)
        given = (self.buffer, self.new_buffer, self.momentum)
        if any((v is None) != (self.buffer is None) for v in given):
            raise VerifyException(
                f"{self.name}: a momentum buffer, its new value and the number momentum "
                f"go together"
            )
        if self.buffer is None and self.nesterov is not None:
            raise VerifyException(f"{self.name}: nesterov needs momentum")


class AdamFamilyOp(UpdateOp):
    """
    What Adam and AdamW share. `step` is the number of steps done before, `t = step + 1`.

    - `exp_avg = beta1 * exp_avg + (1 - beta1) * g`
    - `exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * g * g`
    - `denominator = sqrt(exp_avg_sq) / sqrt(1 - beta2 ** t) + epsilon`
    - `parameter - learning_rate / (1 - beta1 ** t) * exp_avg / denominator`
    """

    parameter = operand_def(TensorType)
    gradient = operand_def(TensorType)
    exp_avg = operand_def(TensorType)
    exp_avg_sq = operand_def(TensorType)
    step = operand_def(TensorType)
    beta1 = prop_def(F64)
    beta2 = prop_def(F64)
    epsilon = prop_def(F64)
    new_parameter = result_def(TensorType)
    new_exp_avg = result_def(TensorType)
    new_exp_avg_sq = result_def(TensorType)

    TYPES: ClassVar[Types] = dict.fromkeys(
        ("exp_avg", "exp_avg_sq", "new_parameter", "new_exp_avg", "new_exp_avg_sq"),
        like("parameter"),
    )

    def verify_(self) -> None:
        self._verify(self.parameter, self.gradient)
        check_type(self, "step", self.step, TensorType(i64, []))
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            if beta.value.data >= 1:
                raise VerifyException(
                    f"{self.name}: {name} is {beta.value.data}, expected less than 1"
                )


@irdl_op_definition
class AdamOp(AdamFamilyOp):
    """One step of Adam, with `g = gradient + weight_decay * parameter`."""

    name = "train.adam"


@irdl_op_definition
class AdamWOp(AdamFamilyOp):
    """
    One step of AdamW: `g = gradient`; the parameter is multiplied with
    `1 - learning_rate * weight_decay` first.
    """

    name = "train.adamw"


@irdl_op_definition
class SquareSumOp(TrainOp):
    """
    The sum of the squares of all elements, a scalar: f64 for f64, else f32. Where the
    tensor is split each device computes its term of the sum.
    """

    name = "train.square_sum"

    source = operand_def(TensorType)
    total = result_def(TensorType)

    TYPES: ClassVar[Types] = {"total": total_of("source")}

    def verify_(self) -> None:
        check_float(self, "source", self.source)
        super().verify_()


OPS = [SgdOp, AdamOp, AdamWOp, SquareSumOp]
