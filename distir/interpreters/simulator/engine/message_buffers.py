"""The memory that a collective needs beside its operand and its result while it is at work."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from distir.dialects.collective_ops.base import CollectiveOp, bucket_of
from distir.dialects.dist import layout_of
from distir.interpreters.simulator.engine.device_map import DeviceMap


class MessageBuffers:
    """
    The bytes of collectives' buffers on each device. A tensor that is split or gathered along
    its first dimension lies in memory as it travels; along others it is copied into a buffer of
    its parts first, or out of one. Tensors in one message are laid one behind the other, so
    that all of them are there twice for a moment: at the first collective of the message the
    reduced ones, and until the last one the gathered ones.
    """

    def __init__(self, device_map: DeviceMap):
        self._device_map = device_map
        # A message may have hundreds of collectives: their bytes are added up once.
        self._last: tuple[CollectiveOp | None, int] = None, 0

    def bytes_of(self, op: CollectiveOp) -> int:
        """Returns the bytes for a collective; asked for in program order, that is quick."""
        before, size = self._last
        if not op.is_joined:
            size = self._bytes_of(op)
        elif not op.BUFFERS.last:
            size = 0  # what the message needs is there since its first collective
        elif before is None or op.prev_op is not before:
            size = self._bytes_of(op)
        self._last = op, size
        return size

    def _bytes_of(self, op: CollectiveOp) -> int:
        bucket, needed = bucket_of(op), op.BUFFERS
        if needed.if_copied and len(bucket) == 1 and _lies_in_order(op):
            return 0
        size = self._given(bucket) if needed.operands else 0
        match needed.results:
            case "all":
                size += self._made(bucket)
            case "others":
                size += self._made(bucket[1:])
            case "none":
                pass
        return ceil(op.share * size)

    def _given(self, ops: Sequence[CollectiveOp]) -> int:
        return sum(self._device_map.bytes_of(op.source, op) for op in ops)

    def _made(self, ops: Sequence[CollectiveOp]) -> int:
        return sum(self._device_map.bytes_of(op.result, op) for op in ops)


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
