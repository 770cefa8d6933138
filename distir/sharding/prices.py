"""What work and communication cost without a cluster, in floating-point operations."""

from __future__ import annotations

from math import inf, prod

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from distir.dialects.dist import Layout
from distir.dialects.onnx_values import bytes_per_element
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.rule import shape_of

PRICE_PER_BYTE_SENT = 4.0
PRICE_PER_BYTE_TOUCHED = 0.05
GATHER_PENALTY = 1.25


def local_bytes(value: SSAValue, layout: Layout, mesh: Mesh) -> float:
    """
    Bytes of a value on one device under a layout. Those of all micro-batches count: a
    device touches and communicates them all.
    """
    type_ = value.type
    if not isinstance(type_, TensorType):
        return 0.0
    elements = prod(shape_of(type_)) if all(n >= 0 for n in shape_of(type_)) else 0
    parts = prod(mesh.size(axis) for axis in layout.split_axes if axis != TIME_AXIS)
    return elements * bytes_per_element(type_.element_type) / parts


def reduce_price(size: float, parts: int) -> float:
    """What an all-reduce of `size` bytes per device costs, in floating-point operations."""
    return PRICE_PER_BYTE_SENT * 2 * (parts - 1) / parts * size


def move_price(source: str, target: str, size: float, parts: int) -> float:
    """
    What it costs to bring a value of `size` bytes from one kind of placement to another,
    in floating-point operations; inf for what no communication does.
    """
    match source, target:
        case "split", "whole":
            return gather_price(size, parts)
        case "split", "split":
            return gather_price(size, parts) / parts
        case "partial", "whole":
            return reduce_price(size, parts)
        case _:
            return inf


def gather_price(size: float, parts: int) -> float:
    """What an all-gather that makes `size` bytes per device costs, in floating-point operations."""
    return PRICE_PER_BYTE_SENT * GATHER_PENALTY * (parts - 1) / parts * size
