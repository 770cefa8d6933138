"""Attributes of ONNX operators: as Python data, as xDSL attributes, and what they may be."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.defs import OpSchema
from xdsl.dialects.builtin import (
    ArrayAttr,
    FloatAttr,
    IntegerAttr,
    StringAttr,
    f32,
    i64,
)
from xdsl.ir import Attribute, TypeAttribute
from xdsl.utils.exceptions import VerifyException

from distir.dialects.onnx_values import constant_attr, constant_value

_AttrType = OpSchema.AttrType


def decoded(value: Any) -> Any:
    """The value of an ONNX attribute with text instead of bytes."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list | tuple):
        return [decoded(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def attribute_from_python(schema: OpSchema.Attribute, value: Any) -> Attribute:
    """The xDSL attribute for the Python value of an ONNX attribute."""
    match schema.type:
        case _AttrType.INT:
            return IntegerAttr(int(value), i64)
        case _AttrType.FLOAT:
            return FloatAttr(float(np.float32(value)), f32)
        case _AttrType.STRING:
            return StringAttr(decoded(value))
        case _AttrType.INTS:
            return ArrayAttr([IntegerAttr(int(v), i64) for v in value])
        case _AttrType.FLOATS:
            return ArrayAttr([FloatAttr(float(np.float32(v)), f32) for v in value])
        case _AttrType.STRINGS:
            return ArrayAttr([StringAttr(decoded(v)) for v in value])
        case _AttrType.TENSOR:
            return constant_attr(value)
        case _:
            raise ValueError(f"ONNX attributes of type {schema.type} are not supported")


def attribute_to_python(attr: Attribute) -> Any:
    """Python data for the xDSL attribute of an ONNX attribute."""
    match attr:
        case IntegerAttr() | FloatAttr():
            return attr.value.data
        case StringAttr():
            return attr.data
        case ArrayAttr():
            return [attribute_to_python(a) for a in attr.data]
        case TypeAttribute():
            return attr
        case _:
            return constant_value(attr)


_EXPECTED: dict[Any, tuple[type[Attribute], str]] = {
    _AttrType.INT: (IntegerAttr, "an integer"),
    _AttrType.FLOAT: (FloatAttr, "a float"),
    _AttrType.STRING: (StringAttr, "a string"),
    _AttrType.INTS: (ArrayAttr, "a list of integers"),
    _AttrType.FLOATS: (ArrayAttr, "a list of floats"),
    _AttrType.STRINGS: (ArrayAttr, "a list of strings"),
}
_ELEMENT = {
    _AttrType.INTS: IntegerAttr,
    _AttrType.FLOATS: FloatAttr,
    _AttrType.STRINGS: StringAttr,
}


def verify_attribute(owner: str, schema: OpSchema.Attribute, attr: Attribute) -> None:
    """Raises VerifyException unless an attribute is of the kind that its schema says."""
    if schema.type not in _EXPECTED:
        return
    kind, words = _EXPECTED[schema.type]
    fits = isinstance(attr, kind)
    if fits and isinstance(attr, ArrayAttr):
        fits = all(isinstance(a, _ELEMENT[schema.type]) for a in attr.data)
    if not fits:
        raise VerifyException(f"{owner}: attribute {schema.name!r} must be {words}")
