"""
Shapes and element types of tensors. Shapes are those of types: global ones where types have
layouts, with -1 for a size that is not known.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, SSAValue


@lru_cache(maxsize=1 << 14)
def tensor_of(element_type: Attribute, shape: tuple[int, ...]) -> TensorType[Any]:
    """
    Returns the type of tensors without a layout. Equal types are one object, as far as that
    is cached: to make and verify one takes longer than most questions about it.
    """
    return TensorType(element_type, shape)


def rank_of(type_: Attribute) -> int:
    """Returns the number of dimensions; 0 for anything that is not a ranked tensor."""
    # Not `isinstance`, which is slow where the answer is no; the class is final.
    return type_.get_num_dims() if type(type_) is TensorType else 0


def shape_of(tensor: SSAValue | Attribute | None) -> tuple[int, ...]:
    """
    Returns the shape of a type, or of a value of that type; () for anything that is not a
    ranked tensor, and for an operand that is omitted.
    """
    # `isinstance` is slow where the answer is no; the class of tensor types is final.
    type_ = tensor
    if type(tensor) is not TensorType and isinstance(tensor, SSAValue):
        type_ = tensor.type
    return type_.get_shape() if type(type_) is TensorType else ()


def known_shape(value: SSAValue) -> tuple[int, ...] | None:
    """Returns the shape of a value; None unless every dimension is known."""
    type_ = value.type
    if not isinstance(type_, TensorType) or min(type_.get_shape(), default=0) < 0:
        return None
    return type_.get_shape()


def element_type(value: SSAValue) -> Attribute:
    """Returns the element type of a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type.element_type
