"""
The cost of a collective or a send: its devices, its time, the bytes sent, and the
memory for its messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import ceil

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation

from distir.dialects.collective_ops.base import CollectiveOp, bucket_of
from distir.dialects.collective_ops.over_axes import AllReduceOp
from distir.dialects.collective_ops.rooted import RootedOp
from distir.dialects.dist import Layout, SendOp, layout_of
from distir.dialects.onnx_ops.values import bytes_per_element
from distir.dialects.tensors import shape_of
from distir.errors import DistIRError
from distir.interpreters.simulator.costs import communication
from distir.interpreters.simulator.costs.communication import Topology
from distir.interpreters.simulator.costs.shared_links import Loads, loads_of
from distir.interpreters.simulator.engine.device_map import (
    DeviceMap,
    Groups,
    NotUniform,
    UniformDeviceMap,
)
from distir.interpreters.simulator.fusion import is_bucketed
from distir.interpreters.simulator.library_kernels import is_noted_scale
from distir.program import describe
from distir.sharding.exchanges import state_exchange
from distir.sharding.sends import keeps_coordinates, plan_send


@dataclass
class Transfer:
    """
    Communication of groups of devices. The devices of a group wait for each other, and
    are then all busy.

    - `positions`: the indices of the devices in the machine's arrays, one row per
      group;
    - `seconds`: the time, one number for all groups or one per group;
    - `sent`: the bytes that each device sends, in the shape of `positions`; `messages`:
      the number of messages;
    - `issue`: the seconds in which the host issues the transfer;
    - `occupies`: whether an asynchronous send keeps its sender busy;
    - `axes`: the mesh axes of a collective's groups, in alphabetical order;
    - `loads`: the loads of a collective on the levels of links.
    """

    positions: npt.NDArray[np.intp]
    seconds: float | npt.NDArray[np.float64]
    sent: npt.NDArray[np.float64]
    issue: float = 0.0
    occupies: bool = False
    messages: int = 1
    axes: tuple[str, ...] = ()
    loads: Loads = ()

    @cached_property
    def meshes(self) -> tuple[int, ...]:
        """
        The indices of the meshes that take part, in a simulation with one clock per
        mesh.
        """
        return tuple(self.positions[0].tolist())


def transfers_of(op: Operation, device_map: DeviceMap) -> tuple[Transfer, ...] | None:
    """
    Returns the transfers of an op, in the order in which they run. Returns None if the
    op does not communicate. The result is empty for a send whose source and target
    devices are the same, and for a scale of 8-bit floats that devices exchange together
    with all scales of a step. Raises DistIRError if a value has no layout, or if the
    meshes of a send do not fit each other.
    """
    if type(op) is SendOp:
        return _send(op, device_map)
    if not isinstance(op, CollectiveOp) or op.TRAFFIC is None:
        return None
    if device_map.hardware.delays_scales and is_noted_scale(op):
        return ()
    transfer = _PATTERNS[op.TRAFFIC.pattern](op, device_map)
    if op.is_joined:
        # The first one of the bucket takes the time of all.
        transfer = replace(transfer, seconds=0.0, issue=0.0, loads=())
    return (transfer,)


def _local_bytes(op: CollectiveOp, device_map: DeviceMap) -> tuple[int, int]:
    return device_map.bytes_of(op.source, op), device_map.bytes_of(op.result, op)


def _message_bytes(op: CollectiveOp, device_map: DeviceMap, side: int) -> int:
    """
    Returns the bytes of the operands (`side` 0) or results (`side` 1) of the
    collectives that travel in one message, if `op` is the first of them. For a later
    collective of a message, returns the bytes of `op` alone: the first collective takes
    the time of the message.
    """
    if op.is_joined:
        return _local_bytes(op, device_map)[side]
    return sum(_local_bytes(o, device_map)[side] for o in bucket_of(op))


def _groups(op: CollectiveOp, device_map: DeviceMap) -> Groups:
    layout = layout_of(op.source)
    if layout is None:
        raise DistIRError(f"{describe(op)} needs values with a layout to be simulated")
    return device_map.groups(layout.mesh, op.axis_names)


def _rooted_groups(op: CollectiveOp, device_map: DeviceMap) -> Groups:
    """
    Returns one group for a collective with a root: the root's device first, then the
    other devices that take part. Raises DistIRError if a value has no layout, or if the
    root's mesh has several devices.
    """
    before, after = layout_of(op.source), layout_of(op.result)
    if before is None or after is None:
        raise DistIRError(f"{describe(op)} needs values with a layout to be simulated")
    root, other = before.mesh, after.mesh
    if not _is_from_root(op):
        root, other = other, root
    devices = device_map.device_ids(root)
    if len(devices) != 1:
        raise DistIRError(
            f"{describe(op)}: mesh @{root} of the root must have one device, not "
            f"{len(devices)}"
        )
    rest = [d for d in device_map.device_ids(other) if d != devices[0]]
    return device_map.group([*devices, *rest])


Seconds = Callable[[float, Topology], float]
"""
A function that returns the seconds of a collective, given its bytes and the topology of
its devices.
"""

BUCKET = 25e6
"""The bytes of gradients in one bucket of PyTorch's DistributedDataParallel."""


def _transfer(
    op: Operation,
    groups: Groups,
    seconds: Seconds,
    size: float,
    sent: npt.NDArray[np.float64] | float,
    axes: Sequence[str],
    kind: str | None = None,
) -> Transfer:
    """
    Returns the transfer of an op among groups of devices along `axes`. `seconds` is a
    function that returns the time for `size` bytes and a topology; a profile adds the
    time of the launch. `sent` is the number of bytes that each device sends: an array,
    or one number for all. `kind` is the kind of collective, by default the kind of the
    op.
    """
    profile = next((s[-1].level.profile for s in groups.distinct() if s), None)
    issue = 0.0
    if profile is not None:
        if is_bucketed(op, profile.fusion):
            seconds = _in_bucket(seconds) if size < BUCKET else seconds
        elif profile.dispatch.ahead:
            issue = profile.dispatch.collective
        else:
            seconds = _later(seconds, profile.dispatch.collective)
    kind = kind or op.name.removeprefix("collective.")
    by_topology = {
        stages: seconds(size, communication.of_kind(kind, stages))
        for stages in groups.distinct()
    }
    shape = groups.positions.shape
    per_device = np.ascontiguousarray(np.broadcast_to(np.float64(sent), shape))
    if len(by_topology) == 1:
        (every,) = by_topology.values()
    else:
        every = np.array([by_topology[stages] for stages in groups.topologies])
    # The slowest group counts for all.
    slowest = max(by_topology, key=by_topology.__getitem__, default=())
    longest = by_topology.get(slowest, 0.0)
    loads = loads_of(kind, size, longest, communication.of_kind(kind, slowest))
    return Transfer(
        groups.positions,
        every,
        per_device,
        issue,
        axes=tuple(sorted(axes)),
        loads=loads,
    )


def _later(seconds: Seconds, by: float) -> Seconds:
    """Returns a function like `seconds` that adds `by` seconds to each result."""
    return lambda size, stages: by + seconds(size, stages)


def _in_bucket(seconds: Seconds) -> Seconds:
    """
    Returns a function that gives one tensor's share of the time in which the whole
    bucket (all tensors of one message) is reduced.
    """
    return lambda size, stages: seconds(BUCKET, stages) * size / BUCKET


def _exchange(op: CollectiveOp, device_map: DeviceMap) -> Transfer:
    """
    Returns the transfer of a collective in which every device of a group sends shares
    of a tensor to all other devices, possibly in several rounds.
    """
    traffic = op.TRAFFIC
    assert traffic is not None
    side = int(traffic.of_result)
    groups = _groups(op, device_map)
    if op.source in device_map.expert_rows:
        # These bytes are of the rows that travel, and all wait for the busiest device.
        sizes = _local_bytes(op, device_map)
        size, whole = sizes[side], max(sizes)
    else:
        size = op.share * _local_bytes(op, device_map)[side]
        whole = op.share * _message_bytes(op, device_map, side)
    sent = traffic.rounds * (groups.size - 1) / groups.size * size
    seconds, axes = _SECONDS[traffic.kind], op.axis_names
    rows = device_map.expert_rows.get(op.source)
    if rows is not None and rows.group_limit:
        seconds = partial(communication.limited_exchange_seconds, rows.group_limit)
    return _transfer(op, groups, seconds, whole, sent, axes, traffic.kind)


def _shift(op: CollectiveOp, device_map: DeviceMap) -> Transfer:
    """
    Returns the transfer of a collective in which each device sends to the next device
    of its group.
    """
    groups, (size, _) = _groups(op, device_map), _local_bytes(op, device_map)
    sent = size if groups.size > 1 else 0
    seconds = communication.shift_seconds
    return _transfer(op, groups, seconds, size, sent, op.axis_names)


def _chain(op: CollectiveOp, device_map: DeviceMap) -> Transfer:
    """
    Returns the transfer of a broadcast or a reduction along a chain that starts or ends
    at the root.
    """
    groups, (size, _) = _rooted_groups(op, device_map), _local_bytes(op, device_map)
    sent = np.full(groups.size, float(size))
    sent[-1 if _is_from_root(op) else 0] = 0.0  # the end of the chain
    return _transfer(op, groups, communication.broadcast_seconds, size, sent, ())


def _parts(op: CollectiveOp, device_map: DeviceMap) -> Transfer:
    """
    Returns the transfer of a collective in which the root sends a part to each device,
    or receives a part from each device.
    """
    groups, from_root = _rooted_groups(op, device_map), _is_from_root(op)
    part = _local_bytes(op, device_map)[int(from_root)]
    whole = part * groups.size
    sent = np.full(groups.size, 0.0 if from_root else float(part))
    sent[0] = whole - part if from_root else 0.0
    return _transfer(op, groups, communication.all_to_all_seconds, whole, sent, ())


def _is_from_root(op: CollectiveOp) -> bool:
    return isinstance(op, RootedOp) and op.FROM_ROOT


_PATTERNS: Mapping[str, Callable[[CollectiveOp, DeviceMap], Transfer]] = {
    "exchange": _exchange,
    "shift": _shift,
    "chain": _chain,
    "parts": _parts,
}
"""
Functions that return the transfer of a collective, by the pattern of its traffic. They
raise DistIRError for values without a layout.
"""

_SECONDS: Mapping[str, Seconds] = {
    "all_reduce": communication.all_reduce_seconds,
    "all_gather": communication.all_gather_seconds,
    "reduce_scatter": communication.reduce_scatter_seconds,
    "all_to_all": communication.all_to_all_seconds,
}
"""Functions that return the seconds of an exchange, by its kind."""


def exchange_of(
    op: Operation, operands: Sequence[Layout], device_map: DeviceMap
) -> Transfer | None:
    """
    Returns the total communication of an op that gathers a state in each of its steps,
    such as a recurrent layer. Returns None if the op does not communicate. `operands`
    holds the layouts of the op's operands.
    """
    name = operands[0].mesh if operands else ""
    mesh = device_map.meshes.get(name)
    found = None if mesh is None else state_exchange(op, operands, mesh)
    if found is None:
        return None
    groups = device_map.groups(name, found.axes)
    once = (groups.size - 1) / groups.size * found.size
    total: Transfer | None = None
    for kind, times in found.kinds:
        each = _transfer(op, groups, _SECONDS[kind], found.size, once, found.axes, kind)
        seconds, sent, issue = (
            times * each.seconds,
            times * each.sent,
            times * each.issue,
        )
        messages = times
        if total is not None:
            seconds, sent = seconds + total.seconds, sent + total.sent
            issue, messages = issue + total.issue, messages + total.messages
        total = replace(
            each, seconds=seconds, sent=sent, issue=issue, messages=messages
        )
    return total


def _send(op: SendOp, device_map: DeviceMap) -> tuple[Transfer, ...]:
    before, after = layout_of(op.source), layout_of(op.result)
    assert before is not None and after is not None  # the op's verifier
    size = device_map.bytes_of(op.source, op)
    source, target = (device_map.meshes[x.mesh] for x in (before, after))
    if not keeps_coordinates(before, source, after, target):
        return _send_in_pieces(op, before, after, device_map)
    if isinstance(device_map, UniformDeviceMap):
        return (_uniform_send(before.mesh, after.mesh, size, device_map),)
    pairs = device_map.pairs(before.mesh, after.mesh)
    if not pairs:
        return ()
    # A device does one thing at a time, so pairs that share one follow each other.
    batches = (
        [pairs]
        if len({d for p in pairs for d in p}) == 2 * len(pairs)
        else [[pair] for pair in pairs]
    )
    return tuple(_send_batch(batch, size, device_map) for batch in batches)


def _send_in_pieces(
    op: SendOp, before: Layout, after: Layout, device_map: DeviceMap
) -> tuple[Transfer, ...]:
    """
    Returns the transfers of a send between meshes of different shapes: for each round,
    one transfer for each size of piece. Raises NotUniform if the simulation has one
    device per mesh.
    """
    if isinstance(device_map, UniformDeviceMap):
        raise NotUniform
    source, target = (device_map.meshes[x.mesh] for x in (before, after))
    assert isinstance(op.source.type, TensorType)
    each = bytes_per_element(op.source.type.element_type)
    transfers: list[Transfer] = []
    for pieces in plan_send(shape_of(op.source.type), before, source, after, target):
        by_size: dict[int, list[tuple[int, int]]] = {}
        for piece in pieces:
            if piece.sender != piece.receiver:
                size = ceil(piece.elements * each)
                by_size.setdefault(size, []).append((piece.sender, piece.receiver))
        sizes = by_size.items()
        transfers += [_send_batch(pairs, size, device_map) for size, pairs in sizes]
    return tuple(transfers)


def _send_batch(
    pairs: list[tuple[int, int]], size: int, device_map: DeviceMap
) -> Transfer:
    positions = np.array(
        [[device_map.position_of(d) for d in pair] for pair in pairs], dtype=np.intp
    )
    seconds = np.array(
        [
            communication.send_seconds(
                size,
                *pair,
                device_map.hardware,
                communication.sharing_of(pairs, pair, device_map.hardware),
            )
            for pair in pairs
        ]
    )
    sent = np.array([[float(size), 0.0]] * len(pairs))
    occupies = any(communication.occupies(*p, device_map.hardware) for p in pairs)
    return Transfer(positions, seconds, sent, occupies=occupies)


def _uniform_send(
    source: str, target: str, size: int, device_map: UniformDeviceMap
) -> Transfer:
    """
    Returns the transfer of a send in which one pair of devices stands for all. Raises
    NotUniform if the pairs communicate over different levels of links.
    """
    pair = device_map.pair(source, target)
    pairs, hardware = device_map.pairs(source, target), device_map.hardware
    sharing = communication.sharing_of(pairs, pair, hardware)
    seconds = communication.send_seconds(size, *pair, hardware, sharing)
    positions = np.array(
        [[device_map.index[source], device_map.index[target]]], dtype=np.intp
    )
    sent = np.array([[float(size), 0.0]])
    occupies = communication.occupies(*pair, device_map.hardware)
    return Transfer(positions, seconds, sent, occupies=occupies)


class MessageBuffers:
    """
    The bytes of the buffers of collectives on each device.

    A tensor that is split or gathered along its first dimension is sent from, or
    received in, its own memory. If the tensor is split or gathered along any other
    dimension, a buffer holds a copy of its parts. The tensors of one message are copied
    next to each other. So each of these tensors is in memory twice for some time:
    tensors to reduce at the first collective of the message, and gathered tensors until
    the last collective. All-reduces of PyTorch's DDP need no further memory, as it has
    buckets for all gradients.
    """

    def __init__(self, device_map: DeviceMap):
        self._device_map = device_map
        # A message may have hundreds of collectives: their bytes are added up once.
        self._last: tuple[CollectiveOp | None, int] = None, 0

    def bytes_of(self, op: CollectiveOp) -> int:
        """
        Returns the bytes of the buffers of the collective `op`. Calls in program order
        are fast.
        """
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
        if isinstance(op, AllReduceOp) and self._device_map.hardware.is_ddp:
            return 0  # Its buckets are there throughout.
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
        is_counted = op.source in self._device_map.expert_rows
        return size if is_counted else ceil(op.share * size)

    def _given(self, ops: Sequence[CollectiveOp]) -> int:
        return sum(self._device_map.bytes_of(op.source, op) for op in ops)

    def _made(self, ops: Sequence[CollectiveOp]) -> int:
        return sum(self._device_map.bytes_of(op.result, op) for op in ops)


def _lies_in_order(op: CollectiveOp) -> bool:
    """
    Whether the parts that a collective sends or receives are consecutive in the memory
    of the whole tensor.
    """
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
