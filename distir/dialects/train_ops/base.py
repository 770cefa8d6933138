"""What all ops of the `train` dialect have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
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
from xdsl.irdl import IRDLOperation, ParsePropInAttrDict, base, traits_def
from xdsl.traits import Pure

from distir.dialects.op_facts import OpFacts
from distir.dialects.tensors import element_type, shape_of, tensor_of
from distir.dialects.train_ops.checks import accumulation_type, check_type

I64 = IntegerAttr.constr(i64)
F32 = base(FloatAttr[Float32Type])
F64 = base(FloatAttr[Float64Type])
INTEGERS = DenseArrayBase.constr(i64)
"""The constraints of properties: a number of that type, or a list of 64-bit integers."""


@dataclass(frozen=True)
class Derived:
    """The type of a value that follows from another value of the op, `source`."""

    source: str
    type_of: Callable[[SSAValue], TensorType]


def like(source: str) -> Derived:
    """
    Returns the shape and the element type of `source`; layouts follow from sharding rules.
    """
    return Derived(source, _plain)


def _plain(value: SSAValue) -> TensorType:
    """Returns the type of a value without its layout: the same object if it has none."""
    type_ = value.type
    if isinstance(type_, TensorType) and isinstance(type_.encoding, NoneAttr):
        return type_
    return tensor_of(element_type(value), shape_of(value))


def total_of(source: str) -> Derived:
    """Returns a scalar of the type in which sums of the elements of `source` are kept."""
    return Derived(source, lambda value: tensor_of(accumulation_type(value), ()))


Types = Mapping[str, Derived]
"""The values of an op by name, with the rules that give their types."""


class TrainOp(IRDLOperation, OpFacts):
    """
    Base of the ops of a training step: without side effects, printed as operands,
    attributes and the types of operands and results, unless an op defines otherwise.
    """

    irdl_options = (ParsePropInAttrDict(),)
    traits = traits_def(Pure())
    assembly_format = "operands attr-dict `:` functional-type(operands, results)"
    IS_FRESH: ClassVar[bool] = True

    TYPES: ClassVar[Types] = {}
    """
    Operands and results whose types follow from others: they are verified, and results are
    made with them.
    """

    def __init__(self, *operands: SSAValue | Sequence[SSAValue] | None, **named: Any):
        """
        Makes an op from its operands in order (optional ones and lists may be left out at
        the end), and from properties by name, as attributes or as Python values: None and
        False stand for absent ones. The name of a result gives its type if that does not
        follow from operands, or None to leave out an optional one.
        """
        definition = self.get_irdl_definition()
        names = [name for name, _ in definition.operands]
        missing: list[list[SSAValue]] = [[] for _ in names[len(operands) :]]
        given = dict(zip(names, operands, strict=False))

        def result_type(name: str) -> Attribute | None:
            rule = self.TYPES.get(name)
            source = None if rule is None else given.get(rule.source)
            if rule is None or not isinstance(source, SSAValue):
                return None
            return rule.type_of(source)

        super().__init__(
            operands=[*operands, *missing],
            result_types=[
                named.pop(name) if name in named else result_type(name)
                for name, _ in definition.results
            ],
            properties={
                name: _attribute(value, definition.properties[name].constr)
                for name, value in named.items()
            },
        )

    def verify_(self) -> None:
        for name, rule in self.TYPES.items():
            value, source = getattr(self, name), getattr(self, rule.source)
            if value is not None and source is not None:
                check_type(self, name, value, rule.type_of(source))


def _attribute(value: Any, constraint: object) -> Attribute | None:
    """
    Returns a Python value as the attribute that a property with this constraint holds.
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
    Returns one attribute object for all ops with that number, as comparing numbers takes
    time.
    """
    return FloatAttr(value, f64 if is_double else f32)
