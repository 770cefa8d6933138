"""The constants that price work and communication when no cluster is given."""

from __future__ import annotations

from math import prod

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from distir.dialects.dist import Layout
from distir.dialects.onnx_ops.values import bytes_per_element
from distir.dialects.tensors import shape_of
from distir.sharding.mesh import TIME_AXIS, Mesh

PRICE_PER_BYTE_SENT = 4.0
PRICE_PER_BYTE_TOUCHED = 0.05
PRICE_PER_MESSAGE = 1e9
"""
The price of one message: the floating-point operations that a device could do while it
waits for a collective of almost no bytes (10 us at 100 TFLOP/s). Only collectives
within an op, in each of its steps, are priced by their number; between ops, the number
hardly differs between plans.
"""


def local_bytes(value: SSAValue, layout: Layout, mesh: Mesh) -> float:
    """
    Returns the bytes of a value on one device under `layout`. The bytes of all
    micro-batches are included, because a device reads and communicates each of them. A
    value that all micro-batches share is counted once.
    """
    type_ = value.type
    if not isinstance(type_, TensorType):
        return 0.0
    shape = shape_of(type_)
    elements = prod(shape) if all(n >= 0 for n in shape) else 0
    parts = prod(mesh.size(axis) for axis in layout.split_axes if axis != TIME_AXIS)
    return elements * bytes_per_element(type_.element_type) / parts
