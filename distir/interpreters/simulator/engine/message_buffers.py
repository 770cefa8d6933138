"""The memory that a collective needs beside its operand and its result while it is at work."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from distir.dialects.collective import (
    AllGatherOp,
    AllReduceOp,
    AllToAllOp,
    CollectiveOp,
    RaggedAllToAllOp,
    ReduceScatterOp,
    bucket_of,
)
from distir.dialects.dist import layout_of
from distir.interpreters.simulator.engine.device_map import DeviceMap


def buffer_bytes(op: CollectiveOp, device_map: DeviceMap) -> int:
    """
    The bytes of a collective's buffers on each device. A tensor that is split or gathered along
    its first dimension lies in memory as it travels; along others it is copied into a buffer of
    its parts first, or out of one. Tensors in one message are laid one behind the other, so
    that all of them are there twice for a moment: at the first collective of the message what
    is reduced, and until the last one what is gathered.
    """
    if op.is_joined and not isinstance(op, AllGatherOp):
        return 0  # what the message needs is there since its first collective
    bucket = bucket_of(op)
    is_alone = len(bucket) == 1

    def given() -> int:
        return sum(device_map.bytes_of(each.source, each) for each in bucket)

    def made(members: Sequence[CollectiveOp]) -> int:
        return sum(device_map.bytes_of(each.result, each) for each in members)

    match op:
        case AllGatherOp():
            return 0 if is_alone and _lies_in_order(op) else made(bucket)
        case AllReduceOp():
            return made(bucket[1:])
        case ReduceScatterOp():
            if is_alone:
                return 0 if _lies_in_order(op) else given()
            return given() + made(bucket[1:])
        case AllToAllOp():
            return given()
        case RaggedAllToAllOp():  # what is sent, and what arrives
            return ceil(op.share * (given() + made(bucket)))
        case _:
            return 0


def _lies_in_order(op: CollectiveOp) -> bool:
    """Whether the parts that travel lie one behind the other in the whole tensor."""
    sides = layout_of(op.source), layout_of(op.result)
    dims = [layout.dims for layout in sides if layout is not None]
    part, whole = max(dims, key=_axes), min(dims, key=_axes)
    if not part:
        return True
    before = whole[0] if whole else ()
    others = whole[1:] or ((),) * (len(part) - 1)  # no dimensions: nothing is split
    runs = [run for _, run in part[0][len(before) :]]
    return part[1:] == others and not any(runs)


def _axes(dims: Sequence[Sequence[object]]) -> int:
    return sum(map(len, dims))
