"""
Updates of one parameter as PyTorch's `torch.optim` computes them, and the sum of
squares for clipping gradients by their global norm.

Every update is elementwise. A parameter, its gradient and its states must be split in
the same way, but any way is possible; ZeRO is thus a choice of layouts. The gradient
may have a narrower element type than the parameter. In mixed precision the parameter is
the f32 master copy, and a Cast after the update makes the narrow copy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    FloatAttr,
    FunctionType,
    StringAttr,
    TensorType,
    UnitAttr,
    f64,
    i32,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    ParsePropInAttrDict,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    opt_result_def,
    prop_def,
    result_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from distir.dialects.formula import Expr, sqrt
from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.base import F64, FormulaOp, Types, like, total_of
from distir.dialects.train_ops.checks import check_float, check_shape, check_type

STEP = "optimizer.step"
"""The name of the state that counts the steps done so far."""


STEP_SETTINGS = ("learning_rate", "weight_decay")
"""The hyper-parameters that may differ from step to step."""


class UpdateOp(FormulaOp):
    """
    Base of ops that compute new values of a parameter or of its states. The new values
    may take the memory of the old ones. The first operand is the parameter or a state.
    The second operand is the gradient, or a direction computed from the gradient.

    Hyper-parameters are properties. The hyper-parameters of `STEP_SETTINGS` may also be
    operands, as f64 scalars: `given` holds their names, in the order of the operands
    `step_settings`. Their properties are then the default values.
    """

    COST_CLASS: ClassVar[str] = "optimizer"
    IS_UPDATE: ClassVar[bool] = True
    PARTIAL_OPERANDS: ClassVar[Sequence[str] | None] = ()

    TORCH_MODULE: ClassVar[str] = "optimizers"
    """
    The module of `distir/runtime/loop` that has a function of the op's name, for lists
    of tensors.
    """

    IS_WHOLE: ClassVar[bool] = True
    """
    Whether the op is all of an update and elementwise. Parameters may then be updated
    in any shape. Several such updates run as one call.
    """

    REPLACED: ClassVar[Sequence[int | None]] = (0, 2, 3)
    """
    For each result, the index of the operand that it replaces; None if there is none.
    Results that an op lacks come last.
    """

    SIGNED: ClassVar[Collection[str]] = ()
    """The hyper-parameters that may be negative."""

    given = opt_prop_def(ArrayAttr[StringAttr])
    step_settings = var_operand_def(TensorType)

    @classmethod
    def arguments(
        cls, operands: dict[str, Any], properties: dict[str, Any]
    ) -> dict[str, Any]:
        """
        Returns the arguments that the formula may take, by name. Hyper-parameters that
        are operands replace the properties of the same name.
        """
        given = properties.pop("given", None)
        names = [] if given is None else [name.data for name in given.data]
        values = [value.number() for value in operands.pop("step_settings")]
        return operands | properties | dict(zip(names, values, strict=True))

    @property
    def settings(self) -> dict[str, float]:
        """The hyper-parameters that are properties, by name."""
        return {
            name: value.value.data
            for name, value in self.properties.items()
            if isinstance(value, FloatAttr)
        }

    @property
    def given_settings(self) -> dict[str, SSAValue]:
        """The hyper-parameters that are operands, by name."""
        names = () if self.given is None else self.given.data
        values = self.step_settings
        return {n.data: v for n, v in zip(names, values, strict=True)}

    @property
    def step_setting_names(self) -> list[str]:
        """The hyper-parameters of the op that may differ from step to step."""
        known = self.get_irdl_definition().properties
        return [name for name in STEP_SETTINGS if name in known]

    @property
    def gradient_operand(self) -> SSAValue:
        """The gradient, or the direction computed from the gradient."""
        return self.operands[1]

    @property
    def shared_operands(self) -> list[SSAValue]:
        """
        The operands that updates of several parameters have in common: the number of
        steps, if the op has this operand, and the settings that are operands.
        """
        step: SSAValue | None = getattr(self, "step", None)
        return [*([] if step is None else [step]), *self.step_settings]

    @property
    def own_operands(self) -> list[SSAValue]:
        """The operands that differ between parameters."""
        return list(self.operands)[: len(self.operands) - len(self.shared_operands)]

    def give_settings(self, given: Mapping[str, SSAValue]) -> None:
        """Makes the op take the hyper-parameters `given`, by name, as operands."""
        others = len(self.operands) - len(self.step_settings)
        self.operands = [*self.operands[:others], *given.values()]
        self.given = ArrayAttr([StringAttr(name) for name in given])

    @property
    def tensors(self) -> Sequence[SSAValue]:
        """
        The operands that have the parameter's shape: the parameter, its gradient and
        its states.
        """
        return self.own_operands

    def verify_pair(
        self, parameter: SSAValue, gradient: SSAValue, name: str = "parameter"
    ) -> None:
        """
        Raises VerifyException unless `parameter`, which the message calls `name`, and
        `gradient` are floats of one shape, the hyper-parameters are valid, and all
        types follow from the formula.
        """
        check_float(self, name, parameter)
        check_float(self, "gradient", gradient)
        check_shape(self, "gradient", gradient, shape_of(parameter))
        for name, value in self.settings.items():
            if not isfinite(value) or (value < 0 and name not in self.SIGNED):
                raise VerifyException(
                    f"{self.name}: {name} is {value}, expected a number that is not "
                    f"negative"
                )
        self._verify_given()
        super().verify_()

    def _verify_given(self) -> None:
        names = [] if self.given is None else [name.data for name in self.given.data]
        if len(names) != len(self.step_settings) or len(set(names)) < len(names):
            raise VerifyException(
                f"{self.name}: given names {len(names)} hyper-parameters and there are "
                f"{len(self.step_settings)} operands; name each of them once"
            )
        for name, value in zip(names, self.step_settings, strict=True):
            if name not in self.step_setting_names:
                raise VerifyException(
                    f"{self.name}: {name!r} cannot be given as an operand; those that can "
                    f"are {', '.join(self.step_setting_names)}"
                )
            check_type(self, name, value, TensorType(f64, []))


def check_below_one(op: UpdateOp, **rates: FloatAttr) -> None:
    """
    Raises VerifyException unless each rate is less than 1. `rates` maps names to rates.
    """
    for name, rate in rates.items():
        if rate.value.data >= 1:
            raise VerifyException(
                f"{op.name}: {name} is {rate.value.data}, expected less than 1"
            )


@irdl_op_definition
class SgdOp(UpdateOp):
    """
    One step of stochastic gradient descent.

    `g = gradient + weight_decay * parameter`. The optional momentum buffer starts as
    zeros: `buffer = momentum * buffer + g`, then `g = buffer`, or with `nesterov` `g =
    g + momentum * buffer`. The new parameter is `parameter - learning_rate * g`.
    """

    name = "train.sgd"
    irdl_options = (
        ParsePropInAttrDict(),
        AttrSizedOperandSegments(as_property=True),
    )

    parameter = operand_def(TensorType)
    gradient = operand_def(TensorType)
    buffer = opt_operand_def(TensorType)
    learning_rate = prop_def(F64)
    weight_decay = prop_def(F64)
    momentum = opt_prop_def(F64)
    nesterov = opt_prop_def(UnitAttr)
    new_parameter = result_def(TensorType)
    new_buffer = opt_result_def(TensorType)

    assembly_format = None  # `parse` and `print`

    def give_settings(self, given: Mapping[str, SSAValue]) -> None:
        """Makes the op take the hyper-parameters `given`, by name, as operands."""
        super().give_settings(given)
        sizes = [1, 1, 0 if self.momentum is None else 1, len(given)]
        name = AttrSizedOperandSegments.attribute_name
        self.properties[name] = DenseArrayBase.from_list(i32, sizes)

    TYPES: ClassVar[Types] = {"buffer": like("parameter")}

    @staticmethod
    def formula(
        parameter: Expr,
        gradient: Expr,
        buffer: Expr | None = None,
        *,
        learning_rate: Expr | float,
        weight_decay: Expr | float,
        momentum: float = 0.0,
        nesterov: bool = False,
    ) -> Expr | tuple[Expr, ...]:
        g = gradient.like(parameter) + weight_decay * parameter
        if buffer is None:
            return parameter - learning_rate * g
        buffer = momentum * buffer + g
        g = g + momentum * buffer if nesterov else buffer
        return parameter - learning_rate * g, buffer

    @classmethod
    def parse(cls, parser: Parser) -> SgdOp:
        value = parser.parse_unresolved_operand
        given = [value()]
        parser.parse_punctuation(",")
        given.append(value())
        has_buffer = parser.parse_optional_keyword("momentum") is not None
        if has_buffer:
            given.append(value())
        if parser.parse_optional_keyword("given") is not None:
            given += parser.parse_comma_separated_list(parser.Delimiter.NONE, value)
        attributes: dict[str, Attribute] = dict(parser.parse_optional_attr_dict())
        known = cls.get_irdl_definition().properties
        properties = {n: attributes.pop(n) for n in list(attributes) if n in known}
        parser.parse_punctuation(":")
        start = parser.pos
        type_ = parser.parse_type()
        if not isinstance(type_, FunctionType):
            parser.raise_error("expected the type of a function", start, parser.pos)
        values = parser.resolve_operands(given, type_.inputs.data, start)
        optional = [values[2:3], values[3:]] if has_buffer else [[], values[2:]]
        updated = list(type_.outputs.data)
        return cls.build(
            operands=[values[0], values[1], *optional],
            result_types=[updated[:1], updated[1:]],
            properties=properties,
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_list((self.parameter, self.gradient), printer.print_ssa_value)
        if self.buffer is not None:
            printer.print_string(" momentum ")
            printer.print_ssa_value(self.buffer)
        if self.step_settings:
            printer.print_string(" given ")
            printer.print_list(self.step_settings, printer.print_ssa_value)
        sizes = AttrSizedOperandSegments.attribute_name
        numbers = {n: v for n, v in self.properties.items() if n != sizes}
        printer.print_op_attributes(numbers | self.attributes)
        printer.print_string(" : ")
        operands, results = (
            [value.type for value in values] for values in (self.operands, self.results)
        )
        printer.print_function_type(operands, results)

    def verify_(self) -> None:
        self.verify_pair(self.parameter, self.gradient)
        given = (self.buffer, self.new_buffer, self.momentum)
        if any((v is None) != (self.buffer is None) for v in given):
            raise VerifyException(
                f"{self.name}: a momentum buffer, its new value and the number momentum "
                f"go together"
            )
        if self.buffer is None and self.nesterov is not None:
            raise VerifyException(f"{self.name}: nesterov needs momentum")


class DirectionalUpdateOp(UpdateOp):
    """
    Base of updates of a parameter along the direction `gradient`. The length of the
    step depends on `parameter_squares` and `gradient_squares`, the sums of the squares
    of all elements of the two tensors.
    """

    IS_WHOLE: ClassVar[bool] = False
    REPLACED: ClassVar[Sequence[int | None]] = (0,)
    TYPES: ClassVar[Types] = {
        "parameter_squares": total_of("parameter"),
        "gradient_squares": total_of("gradient"),
    }

    @property
    def tensors(self) -> Sequence[SSAValue]:
        """The operands that have the parameter's shape."""
        return self.operands[:2]


def adam_moments(
    gradient: Expr,
    exp_avg: Expr,
    exp_avg_sq: Expr,
    time: Expr,
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> tuple[Expr, Expr, Expr]:
    """
    Returns the new mean of gradients, the new mean of their squares, and the
    denominator of a step of Adam. The denominator corrects the bias of the second mean.
    `time` is the number of the step, from 1.
    """
    exp_avg = exp_avg + (1 - beta1) * (gradient - exp_avg)
    exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * gradient * gradient
    denominator = sqrt(exp_avg_sq) / sqrt(1 - beta2**time) + epsilon
    return exp_avg, exp_avg_sq, denominator


class AdamFamilyOp(UpdateOp):
    """
    Base of Adam and AdamW. `step` is the number of steps done so far, and `t = step +
    1`. The subclasses define `g`, the gradient with weight decay. The last formula
    gives the new parameter.

    - `exp_avg = beta1 * exp_avg + (1 - beta1) * g`
    - `exp_avg_sq = beta2 * exp_avg_sq + (1 - beta2) * g * g`
    - `denominator = sqrt(exp_avg_sq) / sqrt(1 - beta2 ** t) + epsilon`
    - `parameter - learning_rate / (1 - beta1 ** t) * exp_avg / denominator`
    """

    IS_DECOUPLED: ClassVar[bool] = False
    """
    Whether weight decay is applied to the parameter directly, instead of to the
    gradient.
    """

    parameter = operand_def(TensorType)
    gradient = operand_def(TensorType)
    exp_avg = operand_def(TensorType)
    exp_avg_sq = operand_def(TensorType)
    step = operand_def(TensorType)
    learning_rate = prop_def(F64)
    weight_decay = prop_def(F64)
    beta1 = prop_def(F64)
    beta2 = prop_def(F64)
    epsilon = prop_def(F64)
    new_parameter = result_def(TensorType)
    new_exp_avg = result_def(TensorType)
    new_exp_avg_sq = result_def(TensorType)

    TYPES: ClassVar[Types] = dict.fromkeys(("exp_avg", "exp_avg_sq"), like("parameter"))

    @classmethod
    def arguments(
        cls, operands: dict[str, Any], properties: dict[str, Any]
    ) -> dict[str, Any]:
        """Returns the arguments that the formula may take, by name."""
        found = super().arguments(operands, properties)
        return found | {"is_decoupled": cls.IS_DECOUPLED}

    @staticmethod
    def formula(
        parameter: Expr,
        gradient: Expr,
        exp_avg: Expr,
        exp_avg_sq: Expr,
        step: Expr,
        *,
        learning_rate: Expr | float,
        weight_decay: Expr | float,
        beta1: float,
        beta2: float,
        epsilon: float,
        is_decoupled: bool,
    ) -> tuple[Expr, ...]:
        time = step.number() + 1
        g = gradient.like(parameter)
        if is_decoupled:
            parameter = parameter * (1 - learning_rate * weight_decay)
        else:
            g = g + weight_decay * parameter
        exp_avg, exp_avg_sq, denominator = adam_moments(
            g, exp_avg, exp_avg_sq, time, beta1=beta1, beta2=beta2, epsilon=epsilon
        )
        rate = learning_rate / (1 - beta1**time)
        return parameter - rate * exp_avg / denominator, exp_avg, exp_avg_sq

    def verify_(self) -> None:
        self.verify_pair(self.parameter, self.gradient)
        check_type(self, "step", self.step, TensorType(i64, []))
        check_below_one(self, beta1=self.beta1, beta2=self.beta2)


@irdl_op_definition
class AdamOp(AdamFamilyOp):
    """One step of Adam, with `g = gradient + weight_decay * parameter`."""

    name = "train.adam"


@irdl_op_definition
class AdamWOp(AdamFamilyOp):
    """
    One step of AdamW, with `g = gradient`. The parameter is first multiplied by `1 -
    learning_rate * weight_decay`.
    """

    name = "train.adamw"
    IS_DECOUPLED: ClassVar[bool] = True


@irdl_op_definition
class SquareSumOp(FormulaOp):
    """
    The sum of the squares of all elements, as a scalar: f64 for f64, else f32. If the
    tensor is split, each device computes its term of the sum.
    """

    name = "train.square_sum"
    TORCH: ClassVar[str] = "{0}.to({result:dtype}).square().sum()"

    source = operand_def(TensorType)
    total = result_def(TensorType)

    def verify_(self) -> None:
        check_float(self, "source", self.source)
        super().verify_()

    @staticmethod
    def formula(source: Expr) -> Expr:
        source = source.wide()
        return (source * source).sum()


OPS = [SgdOp, AdamOp, AdamWOp, SquareSumOp]
