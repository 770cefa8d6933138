"""The type of values in the host's memory, which their device does not need then."""

from __future__ import annotations

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition


@irdl_attr_definition
class HostType(ParametrizedAttribute, TypeAttribute):
    """
    An element that is in the host's memory: a `tensor<8x4x!dist.host<f32>>` takes no memory
    on the device that it belongs to. Only `train.fetch` reads it.
    """

    name = "dist.host"

    element: Attribute


def is_on_host(type_: Attribute) -> bool:
    """Whether a value of that type is a tensor in the host's memory."""
    return isinstance(type_, TensorType) and isinstance(type_.element_type, HostType)


def on_host(type_: TensorType) -> TensorType:
    """Returns the type of a tensor, in the same layout, while it is in the host's memory."""
    return TensorType(HostType(type_.element_type), type_.get_shape(), type_.encoding)


def on_device(type_: TensorType) -> TensorType:
    """Returns the type of a tensor, in the same layout, while it is on its device."""
    element = type_.element_type
    if not isinstance(element, HostType):
        return type_
    return TensorType(element.element, type_.get_shape(), type_.encoding)
