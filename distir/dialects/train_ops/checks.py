"""What the verifiers of train ops check. Layouts are no part of it."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerType,
    TensorType,
    f32,
    f64,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.utils.exceptions import VerifyException

FLOATS = (Float16Type, BFloat16Type, Float32Type, Float64Type)


def shape(value: SSAValue) -> tuple[int, ...]:
    """The shape of a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type.get_shape()


def element_type(value: SSAValue) -> Attribute:
    """The element type of a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type.element_type


def accumulation_type(element: Attribute) -> Float32Type | Float64Type:
    """The type that sums of such elements are kept in: f64 for f64, else f32."""
    return f64 if element == f64 else f32


def without_layout(value: SSAValue) -> TensorType[Attribute]:
    """The type of a tensor without its layout."""
    return TensorType(element_type(value), shape(value))


def expect_shape(op: Operation, what: str, value: SSAValue, want: Sequence[int]) -> None:
    """A value has that shape. Raises VerifyException."""
    if shape(value) != tuple(want):
        raise VerifyException(
            f"{op.name}: {what} has shape {list(shape(value))}, expected {list(want)}"
        )


def expect_element(op: Operation, what: str, value: SSAValue, want: Attribute) -> None:
    """A value has elements of that type. Raises VerifyException."""
    if element_type(value) != want:
        raise VerifyException(
            f"{op.name}: {what} has elements of type {element_type(value)}, expected "
            f"{want}"
        )


def expect_float(op: Operation, what: str, value: SSAValue) -> None:
    """A value holds floats. Raises VerifyException."""
    if not isinstance(element_type(value), FLOATS):
        raise VerifyException(
            f"{op.name}: {what} has elements of type {element_type(value)}, expected "
            f"floats"
        )


def expect_index(op: Operation, what: str, value: SSAValue) -> None:
    """A value holds integers that can be indices. Raises VerifyException."""
    element = element_type(value)
    if not isinstance(element, IntegerType) or element.width.data not in (32, 64):
        raise VerifyException(
            f"{op.name}: {what} has elements of type {element}, expected i32 or i64"
        )
