"""
Attributes of ONNX operators: conversions between Python values and xDSL attributes, and
checks of the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto
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

from distir.dialects.onnx_ops.values import constant_attr, constant_value

_AttrType = OpSchema.AttrType


def decoded(value: Any) -> Any:
    """
    Returns the value of an ONNX attribute with bytes decoded to text. In a list, each
    element is decoded.
    """
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list | tuple):
        return [decoded(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def attribute_from_python(schema: OpSchema.Attribute, value: Any) -> Attribute:
    """
    Returns the Python value of an ONNX attribute as an xDSL attribute. Raises
    ValueError for types of attributes that are not supported.
    """
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
    """
    Returns the value of an ONNX attribute, given as an xDSL attribute, as a Python
    value. A type is returned unchanged, and a tensor as a NumPy array.
    """
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


def decimal(value: float) -> float:
    """
    Returns the decimal number with the fewest digits that rounds to `value` in 32 bits,
    such as 0.1 for 0.10000000149. ONNX stores the floats of attributes in 32 bits, so
    this restores the number that a user wrote.
    """
    return float(str(np.float32(value)))


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


_FLAGS = frozenset(
    [
        "align_corners",
        "allowzero",
        "antialias",
        "ceil_mode",
        "center_point_box",
        "count_include_pad",
        "detect_negative",
        "detect_positive",
        "exclude_outside",
        "exclusive",
        "fmod",
        "input_forget",
        "interleaved",
        "inverse",
        "is_case_sensitive",
        "is_causal",
        "keepdims",
        "largest",
        "layout",
        "linear_before_reset",
        "new_axis",
        "noop_with_empty_axes",
        "onesided",
        "periodic",
        "reverse",
        "saturate",
        "select_last_index",
        "sorted",
        "storage_order",
        "training_mode",
        "transA",
        "transB",
        "upper",
    ]
)
_POSITIVE = frozenset(
    [
        "blocksize",
        "chunk_size",
        "dilations",
        "group",
        "hidden_size",
        "kernel_shape",
        "kv_num_heads",
        "num_groups",
        "num_outputs",
        "offset_group",
        "output_height",
        "output_width",
        "p",
        "pooled_shape",
        "q_num_heads",
        "sample_size",
        "size",
        "strides",
    ]
)
_NOT_NEGATIVE = frozenset(
    ["batch_dims", "block_size", "num_heads", "output_padding", "rotary_embedding_dim"]
)
_TYPES = frozenset(
    [
        "dtype",
        "output_datatype",
        "output_dtype",
        "precision",
        "softmax_precision",
        "stash_type",
        "to",
    ]
)
_REDUCTIONS = ("none", "sum", "mean")
_SCATTERS = ("none", "add", "mul", "max", "min")
_DIRECTIONS = ("forward", "reverse", "bidirectional")
_CHOICES: dict[str, tuple[str, ...]] = {
    "approximate": ("none", "tanh"),
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    "BitShift.direction": ("LEFT", "RIGHT"),
    "DepthToSpace.mode": ("DCR", "CRD"),
    "GRU.direction": _DIRECTIONS,
    "LSTM.direction": _DIRECTIONS,
    "NegativeLogLikelihoodLoss.reduction": _REDUCTIONS,
    "Pad.mode": ("constant", "reflect", "edge", "wrap"),
    "Resize.mode": ("nearest", "linear", "cubic"),
    "RNN.direction": _DIRECTIONS,
    "ScatterElements.reduction": _SCATTERS,
    "ScatterND.reduction": _SCATTERS,
    "SoftmaxCrossEntropyLoss.reduction": _REDUCTIONS,
    "TensorScatter.mode": ("linear", "circular"),
}
"""
The allowed values of text attributes. Keys are attribute names, or `operator.attribute`
where operators differ.
"""


def verify_attribute(owner: str, schema: OpSchema.Attribute, attr: Attribute) -> None:
    """
    Raises VerifyException unless the attribute `attr` of the operator `owner` has the
    kind of value and the range that the ONNX standard requires.
    """
    if schema.type not in _EXPECTED:
        return
    kind, words = _EXPECTED[schema.type]
    fits = isinstance(attr, kind)
    if fits and isinstance(attr, ArrayAttr):
        fits = all(isinstance(a, _ELEMENT[schema.type]) for a in attr.data)
    if not fits:
        raise VerifyException(f"{owner}: attribute {schema.name!r} must be {words}")
    expected = _out_of_range(owner, schema.name, attr)
    if expected is not None:
        raise VerifyException(
            f"{owner}: attribute {schema.name!r} must be {expected}, got "
            f"{attribute_to_python(attr)!r}"
        )


def _out_of_range(owner: str, name: str, attr: Attribute) -> str | None:
    """
    Returns a description of the allowed values of the attribute `name` if the value
    `attr` is not allowed, else None.
    """
    operator = owner.removeprefix("onnx.")
    if isinstance(attr, StringAttr):
        choices = _CHOICES.get(name) or _CHOICES.get(f"{operator}.{name}")
        if choices is None or attr.data in choices:
            return None
        return f"one of {', '.join(map(repr, choices))}"
    values: Sequence[Attribute] = attr.data if isinstance(attr, ArrayAttr) else [attr]
    numbers = [v.value.data for v in values if isinstance(v, IntegerAttr)]
    if name in _FLAGS and any(n not in (0, 1) for n in numbers):
        return "0 or 1"
    if name in _POSITIVE and any(n < 1 for n in numbers):
        return "positive"
    if name in _NOT_NEGATIVE and any(n < 0 for n in numbers):
        return "0 or more"
    if name in _TYPES and any(n not in TensorProto.DataType.values() for n in numbers):
        return "the number of an element type"
    return None
