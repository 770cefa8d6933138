"""
Updates of one parameter, as PyTorch's `torch.optim` computes them, and what clipping
gradients by their global norm needs.

Every update is elementwise: a parameter, its gradient and its states split the same way
in any way, and ZeRO is a choice of layouts. The gradient may have narrower elements than
the parameter: in mixed precision the parameter is the f32 master copy, and a Cast behind
the update makes the narrow one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import isfinite

from xdsl.dialects.builtin import (
    Float64Type,
    FloatAttr,
    NoneAttr,
    TensorType,
    UnitAttr,
    f64,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    base,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    opt_result_def,
    prop_def,
    result_def,
)
from xdsl.utils.exceptions import VerifyException

from distir.dialects.train_ops.base import TrainOp
from distir.dialects.train_ops.checks import (
    accumulation_type,
    check_element_type,
    check_float,
    check_like,
    check_shape,
    element_type,
    shape_of,
)

F64 = base(FloatAttr[Float64Type])

STEP = "optimizer.step"
"""The name of the state that counts the steps done before."""


def _plain(value: SSAValue) -> TensorType[Attribute]:
    """The type of a value, without its layout."""
    type_ = value.type
    if isinstance(type_, TensorType) and isinstance(type_.encoding, NoneAttr):
        return type_
    return TensorType(element_type(value), shape_of(value))


def _numbers(values: Mapping[str, float]) -> dict[str, Attribute]:
    return {name: _number(value) for name, value in values.items()}


@cache
def _number(value: float) -> Attribute:
    """One object for all updates, as comparing numbers takes its time."""
    return FloatAttr(value, f64)


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

    def __init__(
        self,
        parameter: SSAValue,
        gradient: SSAValue,
        buffer: SSAValue | None = None,
        *,
        learning_rate: float,
        weight_decay: float = 0.0,
        momentum: float | None = None,
        nesterov: bool = False,
    ):
        numbers = {"learning_rate": learning_rate, "weight_decay": weight_decay}
        if momentum is not None:
            numbers["momentum"] = momentum
        properties = _numbers(numbers)
        if nesterov:
            properties["nesterov"] = UnitAttr()
        super().__init__(
            operands=[parameter, gradient, buffer],
            result_types=[
                _plain(parameter),
                None if buffer is None else _plain(buffer),
            ],
            properties=properties,
        )

    def verify_(self) -> None:
        self._verify(self.parameter, self.gradient)
        check_like(self, "new parameter", self.new_parameter, self.parameter)
        given = (self.buffer, self.new_buffer, self.momentum)
        if any((v is None) != (self.buffer is None) for v in given):
            raise VerifyException(
                f"{self.name}: a momentum buffer, its new value and the number momentum "
                f"go together"
            )
        if self.buffer is not None and self.new_buffer is not None:
            check_like(self, "momentum buffer", self.buffer, self.parameter)
            check_like(self, "new momentum buffer", self.new_buffer, self.parameter)
        elif self.nesterov is not None:
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

    def __init__(
        self,
        parameter: SSAValue,
        gradient: SSAValue,
        exp_avg: SSAValue,
        exp_avg_sq: SSAValue,
        step: SSAValue,
        *,
        learning_rate: float,
        weight_decay: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
    ):
        super().__init__(
            operands=[parameter, gradient, exp_avg, exp_avg_sq, step],
            result_types=[_plain(v) for v in (parameter, exp_avg, exp_avg_sq)],
            properties=_numbers(
                {
                    "learning_rate": learning_rate,
                    "weight_decay": weight_decay,
                    "beta1": beta1,
                    "beta2": beta2,
                    "epsilon": epsilon,
                }
            ),
        )

    def verify_(self) -> None:
        self._verify(self.parameter, self.gradient)
        for name, value in (
            ("exp_avg", self.exp_avg),
            ("exp_avg_sq", self.exp_avg_sq),
            ("new parameter", self.new_parameter),
            ("new exp_avg", self.new_exp_avg),
            ("new exp_avg_sq", self.new_exp_avg_sq),
        ):
            check_like(self, name, value, self.parameter)
        check_shape(self, "step", self.step, ())
        check_element_type(self, "step", self.step, i64)
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

    def __init__(self, source: SSAValue):
        super().__init__(
            operands=[source],
            result_types=[TensorType(accumulation_type(source), [])],
        )

    def verify_(self) -> None:
        check_float(self, "source", self.source)
        check_shape(self, "total", self.total, ())
        check_element_type(self, "total", self.total, accumulation_type(self.source))


OPS = [SgdOp, AdamOp, AdamWOp, SquareSumOp]
