"""What the verifiers of train ops share. Layouts are not compared: rules do that."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.utils.exceptions import VerifyException


def shape_of(value: SSAValue) -> tuple[int, ...]:
    """The (global) shape of a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type.get_shape()


def check_shape(
    op: Operation, name: str, value: SSAValue, expected: Sequence[int]
) -> None:
    """Raises VerifyException unless a tensor has that shape; -1 is unknown."""
    shape = shape_of(value)
    if len(shape) != len(expected) or any(
        a != b and a >= 0 and b >= 0 for a, b in zip(shape, expected, strict=True)
    ):
        raise VerifyException(
            f"{op.name}: {name} has shape {list(shape)}, expected {list(expected)}"
        )


def check_element(op: Operation, name: str, value: SSAValue, like: SSAValue) -> None:
    """Raises VerifyException unless both tensors have the same element type."""
    assert isinstance(value.type, TensorType) and isinstance(like.type, TensorType)
    if value.type.element_type != like.type.element_type:
        raise VerifyException(
            f"{op.name}: {name} has elements of type {value.type.element_type}, "
            f"expected {like.type.element_type}"
        )


def check_like(op: Operation, name: str, value: SSAValue, like: SSAValue) -> None:
    """Raises VerifyException unless both have the same shape and element type."""
    check_shape(op, name, value, shape_of(like))
    check_element(op, name, value, like)


def checked_axis(op: Operation, axis: int, rank: int) -> int:
    """The index of a possibly negative axis. Raises VerifyException."""
    if not -rank <= axis < rank:
        raise VerifyException(
            f"{op.name}: axis {axis} is outside of a tensor with {rank} dimensions"
        )
    return axis % rank
