"""The type of values in the host's memory, which take no memory on a device."""

from __future__ import annotations

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition


@irdl_attr_definition
class HostType(ParametrizedAttribute, TypeAttribute):
    """
    The element type of tensors in the host's memory: a `tensor<8x4x!dist.host<f32>>`
    takes no memory on its device. Only `train.fetch` reads such a tensor.
    """

    name = "dist.host"

    element: Attribute


def is_on_host(type_: Attribute) -> bool:
    """Whether `type_` is the type of tensors in the host's memory."""
    return isinstance(type_, TensorType) and isinstance(type_.element_type, HostType)


def on_host(type_: TensorType) -> TensorType:
    """
    Returns the type of tensors in the host's memory with the shape, element type and
    layout of `type_`.
    """
    return TensorType(HostType(type_.element_type), type_.get_shape(), type_.encoding)


def on_device(type_: TensorType) -> TensorType:
    """
    Returns the type of tensors on a device with the shape, element type and layout of
    `type_`. A type of tensors on a device is returned unchanged.
    """
    element = type_.element_type
    if not isinstance(element, HostType):
        return type_
    return TensorType(element.element, type_.get_shape(), type_.encoding)
