"""The type of what is in the host's memory while its device does not need it."""

from __future__ import annotations

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
