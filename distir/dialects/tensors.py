"""
Helpers for shapes and element types of tensors. If a type has a layout, its shape is
the global shape. A size of -1 is unknown.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, BlockArgument, OpResult, SSAValue


@lru_cache(maxsize=1 << 14)
def tensor_of(element_type: Attribute, shape: tuple[int, ...]) -> TensorType[Any]:
    """
    Returns the type of tensors with the given element type and shape, without a layout.
    The function caches its results, because making a type is slow, so equal types are
    usually one object.
    """
    return TensorType(element_type, shape)


def rank_of(type_: Attribute) -> int:
    """
    Returns the number of dimensions of a type; 0 if it is not a ranked tensor type.
    """
    # Not `isinstance`, which is slow if it returns False; the class is final.
    return type_.get_num_dims() if type(type_) is TensorType else 0


def shape_of(tensor: SSAValue | Attribute | None) -> tuple[int, ...]:
    """
    Returns the shape of a type, or of a value's type. Returns () if the type is not a
    ranked tensor type, and for None (an omitted operand).
    """
    # `isinstance` is slow if it returns False; the class of tensor types is final.
    type_ = tensor
    if type(tensor) is OpResult or type(tensor) is BlockArgument:
        type_ = tensor.type
    # The sizes are listed here, as `get_shape` is twice as slow.
    return (
        tuple([n.data for n in type_.shape.data]) if type(type_) is TensorType else ()
    )


def known_shape(value: SSAValue) -> tuple[int, ...] | None:
    """
    Returns the shape of a value, or None if the value is not a ranked tensor or a size
    is unknown.
    """
    if not isinstance(value.type, TensorType):
        return None
    shape = shape_of(value.type)
    return shape if min(shape, default=0) >= 0 else None


def element_type(value: SSAValue) -> Attribute:
    """Returns the element type of a value, which must be a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type.element_type
