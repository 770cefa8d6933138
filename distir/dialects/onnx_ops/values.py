"""
Conversions of element types and constants between ONNX, NumPy and xDSL.

Element types that xDSL does not have (strings, 8-bit floats and the like) are written
`!onnx.element<"string">`. Constants with such elements are kept as serialized tensors.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    BFloat16Type,
    BytesAttr,
    ComplexType,
    DenseIntOrFPElementsAttr,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerType,
    Signedness,
    StringAttr,
    TensorType,
)
from xdsl.ir import Attribute, Data, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from distir.dialects.host import HostType
from distir.dialects.tensors import tensor_of


@irdl_attr_definition
class ElementType(ParametrizedAttribute, TypeAttribute):
    """An ONNX element type without a builtin counterpart: `!onnx.element<"string">`."""

    name = "onnx.element"

    kind: StringAttr


@irdl_attr_definition
class SequenceType(ParametrizedAttribute, TypeAttribute):
    """A sequence of values of one type: `!onnx.seq<tensor<2xf32>>`."""

    name = "onnx.seq"

    element: Attribute


@irdl_attr_definition
class OptionalType(ParametrizedAttribute, TypeAttribute):
    """A value that may be absent: `!onnx.optional<tensor<2xf32>>`."""

    name = "onnx.optional"

    element: Attribute


@irdl_attr_definition
class TensorAttr(Data[bytes]):
    """A serialized `onnx.TensorProto`, for constants that `dense` cannot hold."""

    name = "onnx.tensor"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> bytes:
        with parser.in_angle_brackets():
            try:
                return base64.b64decode(parser.parse_str_literal(), validate=True)
            except ValueError:
                parser.raise_error("expected the base64 text of a serialized tensor")

    def print_parameter(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string_literal(base64.b64encode(self.data).decode())

    def verify(self) -> None:
        try:
            TensorProto.FromString(self.data)
        except Exception as error:
            raise VerifyException("not a serialized onnx.TensorProto") from error


def _integer(width: int, signed: bool = True) -> IntegerType:
    return IntegerType(width) if signed else IntegerType(width, Signedness.UNSIGNED)


_BUILTIN: dict[int, TypeAttribute] = {
    TensorProto.FLOAT16: Float16Type(),
    TensorProto.BFLOAT16: BFloat16Type(),
    TensorProto.FLOAT: Float32Type(),
    TensorProto.DOUBLE: Float64Type(),
    TensorProto.BOOL: _integer(1),
    TensorProto.INT8: _integer(8),
    TensorProto.INT16: _integer(16),
    TensorProto.INT32: _integer(32),
    TensorProto.INT64: _integer(64),
    TensorProto.UINT8: _integer(8, False),
    TensorProto.UINT16: _integer(16, False),
    TensorProto.UINT32: _integer(32, False),
    TensorProto.UINT64: _integer(64, False),
    TensorProto.COMPLEX64: ComplexType(Float32Type()),
    TensorProto.COMPLEX128: ComplexType(Float64Type()),
}
_FROM_BUILTIN: dict[Attribute, int] = {v: k for k, v in _BUILTIN.items()}

_DENSE = frozenset(
    k
    for k in _BUILTIN
    if k not in (TensorProto.BFLOAT16, TensorProto.COMPLEX64, TensorProto.COMPLEX128)
)


LOW_PRECISION_FLOATS: dict[str, BFloat16Type | Float16Type] = {
    "bf16": BFloat16Type(),
    "f16": Float16Type(),
}
"""The 16-bit floating-point types that models compute in, by name."""

FLOAT_TYPES: dict[str, BFloat16Type | Float16Type | Float32Type] = {
    **LOW_PRECISION_FLOATS,
    "f32": Float32Type(),
}
"""The floating-point types that models compute in, by name."""


def element_type(onnx_type: int) -> TypeAttribute:
    """Returns the xDSL element type for a `TensorProto.DataType`."""
    if onnx_type in _BUILTIN:
        return _BUILTIN[onnx_type]
    return ElementType(StringAttr(TensorProto.DataType.Name(onnx_type).lower()))


def onnx_element_type(type_: Attribute) -> int:
    """
    Returns the `TensorProto.DataType` of an xDSL element type. Raises ValueError if
    ONNX has no such type.
    """
    if type_ in _FROM_BUILTIN:
        return _FROM_BUILTIN[type_]
    if isinstance(type_, ElementType):
        return TensorProto.DataType.Value(type_.kind.data.upper())
    raise ValueError(f"ONNX has no tensors of {type_}")


def numpy_dtype(type_: Attribute) -> np.dtype[Any]:
    """
    Returns the NumPy dtype of an xDSL element type, from ml_dtypes if NumPy itself has
    no such type. Whether the elements are in the memory of the host or of a device does
    not matter.
    """
    if isinstance(type_, HostType):
        return numpy_dtype(type_.element)
    return np.dtype(helper.tensor_dtype_to_np_dtype(onnx_element_type(type_)))


def element_type_of_dtype(dtype: npt.DTypeLike) -> TypeAttribute:
    """Returns the xDSL element type of a NumPy dtype."""
    dtype = np.dtype(dtype)
    if dtype.kind in "OUS":
        return element_type(TensorProto.STRING)
    return element_type(helper.np_dtype_to_tensor_dtype(dtype))


@lru_cache(maxsize=256)
def bytes_per_element(type_: Attribute) -> float:
    """
    Returns the number of bytes that one element takes on its device. Types of less than
    a byte give fractions. Elements in the host's memory give zero.
    """
    if isinstance(type_, HostType):
        return 0.0
    if isinstance(type_, ElementType):
        digits = "".join(c for c in type_.kind.data if c.isdigit())
        return int(digits[0]) / 8 if digits else 8.0
    if isinstance(type_, IntegerType):
        return (
            max(type_.width.data, 8) / 8
            if type_.width.data == 1
            else (type_.width.data / 8)
        )
    return float(numpy_dtype(type_).itemsize)


def tensor_type(
    shape: Sequence[int], element: Attribute, encoding: Attribute | None = None
) -> TensorType[Any]:
    """
    Returns a ranked tensor type. `DYNAMIC_INDEX` in `shape` stands for a dynamic
    dimension.
    """
    if encoding is None:
        return tensor_of(element, tuple(shape))
    return TensorType(element, shape, encoding)


def constant_attr(array: npt.NDArray[Any]) -> DenseIntOrFPElementsAttr | TensorAttr:
    """
    Returns the attribute that holds a constant: `dense` if xDSL can hold and read the
    elements, else a `TensorAttr`.
    """
    array = np.asarray(array)
    element = element_type_of_dtype(array.dtype)
    # Plain `xdsl-opt` reads the hexadecimal digits of an infinity as an integer.
    readable = array.dtype.kind != "f" or bool(np.isfinite(array).all())
    if _FROM_BUILTIN.get(element) not in _DENSE or not readable:
        return TensorAttr(numpy_helper.from_array(array).SerializeToString())
    # The attribute holds every element, little-endian; true has all bits set.
    if array.dtype.kind == "b":
        array = array.astype(np.uint8) * np.uint8(255)
    data = array.astype(array.dtype.newbyteorder("<")).tobytes()
    # xDSL's types do not say which element types a constant may have.
    type_: Any = TensorType(element, array.shape)
    return DenseIntOrFPElementsAttr(type_, BytesAttr(data))


def constant_value(attr: Attribute) -> npt.NDArray[Any]:
    """
    Returns the NumPy array that a constant attribute holds. Raises ValueError if `attr`
    does not hold a constant.
    """
    if isinstance(attr, TensorAttr):
        return numpy_helper.to_array(TensorProto.FromString(attr.data))
    if not isinstance(attr, DenseIntOrFPElementsAttr):
        raise ValueError(f"{attr} is not a constant tensor")
    dtype = numpy_dtype(attr.get_element_type())
    stored = np.dtype(np.uint8) if dtype.kind == "b" else dtype.newbyteorder("<")
    values = np.frombuffer(attr.data.data, stored).astype(dtype)
    return values.reshape(attr.get_shape())


def type_from_proto(proto: onnx.TypeProto) -> TypeAttribute:
    """
    Returns the xDSL type of an `onnx.TypeProto`. Unknown dimensions become dynamic.
    Raises ValueError for kinds of values that are not supported.
    """
    from xdsl.dialects.builtin import UnrankedTensorType

    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        element = element_type(proto.tensor_type.elem_type)
        if not proto.tensor_type.HasField("shape"):
            return UnrankedTensorType(element)
        return tensor_of(
            element,
            tuple(
                d.dim_value if d.HasField("dim_value") else DYNAMIC_INDEX
                for d in proto.tensor_type.shape.dim
            ),
        )
    if kind == "sequence_type":
        return SequenceType(type_from_proto(proto.sequence_type.elem_type))
    if kind == "optional_type":
        return OptionalType(type_from_proto(proto.optional_type.elem_type))
    raise ValueError(f"values of ONNX kind {kind} are not supported")


def type_to_proto(type_: Attribute) -> onnx.TypeProto:
    """
    Returns the `onnx.TypeProto` of an xDSL type. Raises ValueError if ONNX has no such
    type.
    """
    from xdsl.dialects.builtin import UnrankedTensorType

    if isinstance(type_, TensorType):
        shape = [d if d >= 0 else None for d in type_.get_shape()]
        return helper.make_tensor_type_proto(
            onnx_element_type(type_.element_type), shape
        )
    if isinstance(type_, UnrankedTensorType):
        return helper.make_tensor_type_proto(
            onnx_element_type(type_.element_type), None
        )
    if isinstance(type_, SequenceType):
        return helper.make_sequence_type_proto(type_to_proto(type_.element))
    if isinstance(type_, OptionalType):
        return helper.make_optional_type_proto(type_to_proto(type_.element))
    raise ValueError(f"ONNX has no values of type {type_}")
