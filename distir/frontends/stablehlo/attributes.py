"""Reads the attributes of StableHLO ops as Python data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    IntegerAttr,
    StringAttr,
    SymbolRefAttr,
    UnregisteredAttr,
)
from xdsl.ir import Attribute, Operation

from distir.dialects.onnx_ops.values import constant_value

_LIST = re.compile(r"(\w+)\s*=\s*(\[[^\]]*\]|-?\d+)")
_INTEGER = re.compile(r"-?\d+")


def attribute(op: Operation, name: str) -> Attribute | None:
    """
    Returns the property `name` of an op or, if there is none, the attribute `name`.
    Returns None if the op has neither.
    """
    found = op.properties.get(name)
    return op.attributes.get(name) if found is None else found


def text(attr: Attribute | None) -> str:
    """
    Returns the text of an attribute: the content of a string, the name of a symbol, or
    the text inside the angle brackets of a StableHLO attribute. Returns "" if `attr` is
    None.
    """
    if isinstance(attr, StringAttr):
        return attr.data
    if isinstance(attr, SymbolRefAttr):
        return attr.root_reference.data
    if isinstance(attr, UnregisteredAttr):
        return attr.value.data
    return "" if attr is None else str(attr)


def last_word(attr: Attribute | None) -> str:
    """
    Returns the last word of an attribute: `LT` for `#stablehlo<comparison_direction
    LT>`. Returns "" if the attribute contains no word.
    """
    words = re.findall(r"\w+", text(attr))
    return words[-1] if words else ""


def integers(attr: Attribute | None) -> list[int]:
    """
    Returns the integers of an array, a list, a dense tensor or an integer attribute.
    Returns [] if `attr` is None or any other attribute.
    """
    if isinstance(attr, DenseArrayBase):
        return [int(value) for value in attr.get_values()]
    if isinstance(attr, DenseIntOrFPElementsAttr):
        return [int(value) for value in array(attr).reshape(-1)]
    if isinstance(attr, ArrayAttr):
        elements: Sequence[Attribute] = attr.data
        return [n for element in elements for n in integers(element)]
    if isinstance(attr, IntegerAttr):
        return [attr.value.data]
    return []


def integer(attr: Attribute | None, default: int = 0) -> int:
    """
    Returns the value of an integer attribute. Returns `default` if `attr` is None or
    any other attribute.
    """
    return attr.value.data if isinstance(attr, IntegerAttr) else default


def numbers(attr: Attribute | None) -> dict[str, list[int]]:
    """
    Returns the lists of integers in an attribute such as `#stablehlo.dot<...>`, by the
    name of each list. A single integer becomes a list with one element.
    """
    return {
        name: [int(n) for n in _INTEGER.findall(values)]
        for name, values in _LIST.findall(text(attr))
    }


def array(attr: Attribute | None) -> npt.NDArray[Any]:
    """Returns the array in the attribute of a constant."""
    assert isinstance(attr, DenseIntOrFPElementsAttr)
    return np.asarray(constant_value(attr))
