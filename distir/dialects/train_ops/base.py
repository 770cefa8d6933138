"""The base of all ops of the `train` dialect."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from inspect import signature
from typing import Any, ClassVar

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    Float32Type,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    NoneAttr,
    StringAttr,
    TensorType,
    UnitAttr,
    f32,
    f64,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    OptOperandDef,
    ParsePropInAttrDict,
    VarOperandDef,
    base,
    traits_def,
)
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from distir.dialects.formula import Expr, Formula, FormulaError, Shape, operand
from distir.dialects.op_facts import OpFacts
from distir.dialects.tensors import element_type, shape_of, tensor_of
from distir.dialects.train_ops.checks import accumulation_type, check_type

I64 = IntegerAttr.constr(i64)
F32 = base(FloatAttr[Float32Type])
F64 = base(FloatAttr[Float64Type])
INTEGERS = DenseArrayBase.constr(i64)
"""
The constraints of properties: an integer (`I64`), a 32-bit float (`F32`), a 64-bit
float (`F64`), a list of integers (`INTEGERS`).
"""


@dataclass(frozen=True)
class Derived:
    """
    A rule for the type of a value: `type_of` returns the type, given the type of
    `source`, another value of the op.
    """

    source: str
    type_of: Callable[[SSAValue], TensorType]


def like(source: str) -> Derived:
    """
    Returns the rule that a value has the shape and element type of the value `source`,
    but not its layout.
    """
    return Derived(source, _plain)


def _plain(value: SSAValue) -> TensorType:
    """
    Returns the type of a value without its layout. A type without a layout is returned
    as the same object.
    """
    type_ = value.type
    if isinstance(type_, TensorType) and isinstance(type_.encoding, NoneAttr):
        return type_
    return tensor_of(element_type(value), shape_of(value))


def total_of(source: str) -> Derived:
    """
    Returns the rule that a value is a scalar, of the type in which sums of elements of
    the value `source` are accumulated.
    """
    return Derived(source, lambda value: tensor_of(accumulation_type(value), ()))


Types = Mapping[str, Derived]
"""The rules that give the types of an op's values, by the values' names."""

Operands = Mapping[str, SSAValue | Sequence[SSAValue] | None]
"""
The operands of an op by name. None or an empty list stands for an omitted operand.
"""

Properties = Mapping[str, Attribute | None]


class TrainOp(IRDLOperation, OpFacts):
    """
    Base of the ops of a training step. Unless its class defines something else, an op
    has no side effects, and is printed as operands, attributes, and the types of
    operands and results.
    """

    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = "operands attr-dict `:` functional-type(operands, results)"
    IS_FRESH: ClassVar[bool] = True

    TYPES: ClassVar[Types] = {}
    """
    The operands and results whose types are derived from other values. The verifier
    checks them, and the constructor creates results with these types.
    """

    def __init__(self, *operands: SSAValue | Sequence[SSAValue] | None, **named: Any):
        """
        Makes an op from its operands in order and from properties by name.

        Optional operands and lists may be left out at the end. Properties are
        attributes or Python values; None and False stand for absent properties. The
        type of a result is given under the result's name, or derived from the operands.
        The type None leaves out an optional result.
        """
        definition = self.get_irdl_definition()
        names = [name for name, _ in definition.operands]
        missing: list[list[SSAValue]] = [[] for _ in names[len(operands) :]]
        results = [name for name, _ in definition.results]
        types = {name: named.pop(name) for name in results if name in named}
        properties = {
            name: _attribute(value, definition.properties[name].constr)
            for name, value in named.items()
        }
        if len(types) < len(results):
            given = dict(zip(names, [*operands, *missing], strict=True))
            types = {**self.result_types_of(given, properties), **types}
        super().__init__(
            operands=[*operands, *missing],
            result_types=[types.get(name) for name in results],
            properties=properties,
        )

    @classmethod
    def result_types_of(
        cls, operands: Operands, properties: Properties
    ) -> Mapping[str, Attribute]:
        """
        Returns the types of the results that are derived from operands and properties,
        by name.
        """
        found: dict[str, Attribute] = {}
        for name, rule in cls.TYPES.items():
            source = operands.get(rule.source)
            if isinstance(source, SSAValue):
                found[name] = rule.type_of(source)
        return found

    def verify_(self) -> None:
        for name, rule in self.TYPES.items():
            value, source = getattr(self, name), getattr(self, rule.source)
            if value is not None and source is not None:
                check_type(self, name, value, rule.type_of(source))


class FormulaOp(TrainOp):
    """
    Base of ops whose meaning is a formula.

    The formula is a static method. This method takes operands as expressions and
    properties as Python values, by name, and returns the expression of each result. Its
    parameters are only the operands and properties that the formula needs. If an op
    lacks an optional operand or property, the formula's parameter of this name keeps
    its default. Optional results come last.

    The types of results, the values on arrays and the sharding rule follow from the
    formula. Requirements on operand types are checked by each op's class.
    """

    GRADIENT_OF: ClassVar[str] = ""
    """
    The ONNX operator of one operand whose gradient the op computes, from the gradient
    of its result and its operand. The operator's attributes have the names of the op's
    properties. Empty if there is none.
    """

    FROM_RESULT: ClassVar[bool] = False
    """Whether the op takes the operator's result instead of its operand."""

    PARTIAL_OPERANDS: ClassVar[Sequence[str] | None] = None
    """
    The operands that may be partial sums if the formula is linear in them; None for
    all. The sums of other operands are completed first, so that results are rounded as
    in the sequential program.
    """

    DECOMPOSES: ClassVar[bool] = False
    """Whether the op can be decomposed to split factors that it cannot split itself."""

    @staticmethod
    @abstractmethod
    def formula(*args: Any, **kwargs: Any) -> Expr | tuple[Expr, ...]:
        """Returns the expressions of the op's results."""

    @classmethod
    def arguments(
        cls, operands: dict[str, Any], properties: dict[str, Any]
    ) -> dict[str, Any]:
        """
        Returns all arguments that the formula may take, by name: operands as
        expressions, and properties as Python values.
        """
        return operands | properties

    @property
    def record(self) -> Formula:
        """
        The formula applied to the types of this op's operands and to its properties.
        Raises FormulaError if the shapes do not fit.
        """
        names, lists = _operand_names(type(self))
        if len(lists) > 1:
            given = {name: getattr(self, name) for name in names}
        else:
            values: list[SSAValue | Sequence[SSAValue]] = [*self.operands]
            for at in lists:
                end = at + len(values) - len(names) + 1
                values[at:end] = [self.operands[at:end]]
            given = dict(zip(names, values, strict=True))
        return _record(type(self), _types(given), tuple(self.properties.items()))

    @classmethod
    def result_types_of(
        cls, operands: Operands, properties: Properties
    ) -> Mapping[str, Attribute]:
        values = [v for v in properties.items() if v[1] is not None]
        record = _record(cls, _types(operands), tuple(values))
        names = [name for name, _ in cls.get_irdl_definition().results]
        found = dict(zip(names, record.results, strict=False))
        return {name: expr.type for name, expr in found.items()}

    def verify_(self) -> None:
        super().verify_()
        names = [name for name, _ in self.get_irdl_definition().results]
        try:
            record = self.record
        except FormulaError as error:
            raise VerifyException(f"{self.name}: {error}") from error
        except ZeroDivisionError as error:
            raise VerifyException(
                f"{self.name}: its formula divides by an attribute that is 0; give another "
                f"number"
            ) from error
        for name, value, expr in zip(names, self.results, record.results, strict=False):
            if value.type is not expr.type:
                check_type(self, name, value, expr.type)


@cache
def _operand_names(op: type[FormulaOp]) -> tuple[list[str], list[int]]:
    """
    Returns the names of an op's operands, and the indices of the operands that are
    lists or optional.
    """
    operands = op.get_irdl_definition().operands
    lists = [i for i, (_, k) in enumerate(operands) if isinstance(k, VarOperandDef)]
    return [name for name, _ in operands], lists


_Types = tuple[tuple[tuple[Shape, Attribute], ...], ...]
"""
For each operand, the shapes and element types of its tensors: one, none or several.
"""


def _types(operands: Operands) -> _Types:
    def of(value: SSAValue) -> tuple[Shape, Attribute]:
        return shape_of(value), element_type(value)

    return tuple(
        (of(v),) if isinstance(v, SSAValue) else tuple(map(of, v or ()))
        for v in operands.values()
    )


@lru_cache(maxsize=1 << 13)
def _record(
    op: type[FormulaOp],
    types: _Types,
    properties: tuple[tuple[str, Attribute], ...],
) -> Formula:
    definition = op.get_irdl_definition()
    exprs = [[operand(*type_) for type_ in each] for each in types]
    given: dict[str, Any] = {}
    for (name, kind), own in zip(definition.operands, exprs, strict=True):
        if isinstance(kind, VarOperandDef) and not isinstance(kind, OptOperandDef):
            given[name] = own
        elif own:
            (given[name],) = own
    values = {name: _python_value(value) for name, value in properties}
    arguments = op.arguments(given, values)
    taken = signature(op.formula).parameters
    found = op.formula(**{n: v for n, v in arguments.items() if n in taken})
    results = found if isinstance(found, tuple) else (found,)
    return Formula(tuple(expr for own in exprs for expr in own), results)


def _python_value(value: Attribute) -> Any:
    match value:
        case UnitAttr():
            return True
        case IntegerAttr() | FloatAttr():
            return value.value.data
        case StringAttr():
            return value.data
        case _:
            return value


def _attribute(value: Any, constraint: object) -> Attribute | None:
    """
    Returns the attribute for a property with the given constraint, from a Python value
    or an attribute. Returns None, for an absent property, if `value` is None or False.
    """
    match value:
        case None | False:
            return None
        case True:
            return UnitAttr()
        case str():
            return StringAttr(value)
        case int() | float() if constraint == I64:
            return IntegerAttr(int(value), i64)
        case int() | float():
            return _number(float(value), constraint == F64)
        case [tuple(), *_]:
            return ArrayAttr([DenseArrayBase.from_list(i64, v) for v in value])
        case list() | tuple():
            return DenseArrayBase.from_list(i64, [*value])
        case _:
            return value


@cache
def _number(value: float, is_double: bool) -> Attribute:
    """
    Returns the attribute for a number. Equal numbers share one object, so that
    comparing ops is fast.
    """
    return FloatAttr(value, f64 if is_double else f32)
