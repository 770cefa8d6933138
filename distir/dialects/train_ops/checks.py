"""
Checks that the verifiers of train ops share. Sharding rules, not these checks, compare
layouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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

from distir.dialects.tensors import element_type, shape_of

FLOATS = (Float16Type, BFloat16Type, Float32Type, Float64Type)


def check_shape(
    op: Operation, name: str, value: SSAValue, expected: Sequence[int]
) -> None:
    """
    Raises VerifyException unless `value` has shape `expected`. A size of -1 is unknown.
    `name` is the value's name in the message.
    """
    shape = shape_of(value)
    if len(shape) != len(expected) or any(
        a != b and a >= 0 and b >= 0 for a, b in zip(shape, expected, strict=True)
    ):
        raise VerifyException(
            f"{op.name}: {name} has shape {list(shape)}, expected {list(expected)}"
        )


def check_type(op: Operation, name: str, value: SSAValue, expected: TensorType) -> None:
    """
    Raises VerifyException unless `value` has the shape and element type of `expected`.
    `name` is the value's name in the message.
    """
    check_shape(op, name, value, expected.get_shape())
    check_element_type(op, name, value, expected.element_type)


def checked_axis(op: Operation, axis: int, rank: int) -> int:
    """
    Returns `axis`, which may be negative, as an index counted from 0. Raises
    VerifyException if the axis does not exist in a tensor of `rank` dimensions.
    """
    if not -rank <= axis < rank:
        raise VerifyException(
            f"{op.name}: axis {axis} is outside of a tensor with {rank} dimensions"
        )
    return axis % rank


def accumulation_type(value: SSAValue) -> Float32Type | Float64Type:
    """
    Returns the type in which sums of a tensor's elements are accumulated: f64 for f64,
    else f32.
    """
    return f64 if element_type(value) == f64 else f32


def check_element_type(
    op: Operation, name: str, value: SSAValue, expected: Attribute
) -> None:
    """
    Raises VerifyException unless `value` has the element type `expected`. `name` is the
    value's name in the message.
    """
    if element_type(value) != expected:
        raise VerifyException(
            f"{op.name}: {name} has elements of type {element_type(value)}, expected "
            f"{expected}"
        )


def check_float(op: Operation, name: str, value: SSAValue) -> None:
    """
    Raises VerifyException unless `value`, called `name` in the message, holds floats.
    """
    if not isinstance(element_type(value), FLOATS):
        raise VerifyException(
            f"{op.name}: {name} has elements of type {element_type(value)}, expected "
            f"floats"
        )


def check_integers(op: Operation, name: str, value: SSAValue) -> None:
    """
    Raises VerifyException unless `value`, called `name` in the message, holds 32-bit or
    64-bit integers.
    """
    element = element_type(value)
    if not isinstance(element, IntegerType) or element.width.data not in (32, 64):
        raise VerifyException(
            f"{op.name}: {name} has elements of type {element}, expected i32 or i64"
        )


def check_choice(op: Operation, what: str, name: str, known: Iterable[str]) -> None:
    """
    Raises VerifyException unless `name` is one of the names `known`. `what` says in the
    message of what kind the names are.
    """
    names = tuple(known)
    if name not in names:
        raise VerifyException(
            f"{op.name}: there is no {what} {name!r}; choose from {', '.join(names)}"
        )


def product_shape(op: Operation, a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """
    Returns the shape of the product of factors with shapes `a` and `b`. Raises
    VerifyException if the factors cannot be multiplied.
    """
    if len(a) < 2 or len(b) != 2 or a[-1] != b[0]:
        raise VerifyException(
            f"{op.name}: cannot multiply {list(a)} by {list(b)}; expected [..., m, k] and "
            f"[k, n]"
        )
    return (*a[:-1], b[1])
