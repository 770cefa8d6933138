"""
The time of communication, by alpha-beta models over the levels of links.

A `Topology` describes a group of devices: for each level of links, the number of blocks
that communicate over that level. Bandwidth-optimal rings run level by level, innermost
first. Each level handles the part of the data that the next inner level leaves. For
example, a reduce-scatter of S bytes over g devices per node and N nodes takes `(g-1)(a
+ S/(g B))` inside the nodes and `(N-1)(a' + S/(g N B'))` between them. An all-reduce is
a reduce-scatter and an all-gather.

With a profile, links reach a fraction of their bandwidth, data that is added up or
copied also moves through the memory, and every collective has an overhead. The time is
that of the fastest of several algorithms: rings level by level; one ring of all devices
whose levels are busy at the same time; and, for an all-reduce, two trees. Some profiles
say that the devices of a node do not share the data that comes over the network. In
this case there is one ring, and every device receives all data over its own adapter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2

from distir.interpreters.simulator.costs.hardware import Hardware, LinkLevel
from distir.interpreters.simulator.profiles.profile import LinkFigures


@dataclass(frozen=True)
class Crossing:
    """
    One level of links in a group of devices. `blocks` parts of the group communicate
    through `level`. Inner levels connect the `inner` devices of each part. `sharing`
    devices of each block use the level at the same time, including devices of other
    groups. `kind` is the kind of communication; a profile may have figures for this
    kind alone.
    """

    level: LinkLevel
    blocks: int
    inner: int
    sharing: int = 1
    kind: str = ""

    @property
    def figures(self) -> LinkFigures | None:
        """The performance of the level in practice, or None without a profile."""
        figures = self.level.figures
        return None if figures is None else figures.of_kind(self.kind)

    @property
    def devices(self) -> int:
        """
        The number of devices of the group that this level and all inner levels connect.
        """
        return self.blocks * self.inner

    @property
    def bandwidth(self) -> float:
        """
        The bandwidth that each device of the group gets in each direction, in bytes/s.
        """
        level = self.level
        bandwidth = level.bandwidth
        if level.block_bandwidth is not None:
            bandwidth = min(bandwidth, level.block_bandwidth / self.sharing)
        figures = self.figures
        return bandwidth if figures is None else bandwidth * figures.share(self.devices)

    @property
    def block_rate(self) -> float:
        """
        The rate in bytes/s at which a block takes part in a collective. If the devices
        of a block share the data that they receive, the result is the sum of the
        devices' rates. Otherwise each device receives all data itself, and the result
        is the rate of one device.
        """
        figures = self.figures
        if figures is not None and not figures.shared:
            return self.bandwidth
        return self.bandwidth * self.inner

    @property
    def latency(self) -> float:
        """
        The seconds from the sending of a message to the arrival of its first byte.
        """
        figures = self.figures
        return self.level.latency if figures is None else figures.latency

    @property
    def per_copied_byte(self) -> float:
        """The seconds for each byte that is added up or copied during a collective."""
        figures = self.figures
        return 0.0 if figures is None else 1 / figures.copy_bandwidth


Topology = tuple[Crossing, ...]
"""
The levels that a group of devices crosses, innermost first. It is empty for a single
device.
"""


def topology(group: Sequence[int], hardware: Hardware) -> Topology:
    """
    Returns the levels of links that the devices of `group` need to reach each other,
    innermost first. A group that is spread unevenly over the blocks of a level counts
    as one ring over the outermost level that the group needs.
    """
    crossings: list[Crossing] = []
    inner = 1
    size = len(group)
    even = True
    for within, level in zip((None, *hardware.levels), hardware.levels, strict=False):
        if inner == size:
            break
        counts: dict[int, int] = {}
        for device in group:
            block = device // level.span
            counts[block] = counts.get(block, 0) + 1
        if len(counts) == 1 and not even:
            return (Crossing(hardware.level_within(level, None, group), size, 1),)
        count = min(counts.values())
        even = even and max(counts.values()) == count and count % inner == 0
        if even and count > inner:
            slowest = hardware.level_within(level, within, group)
            crossings.append(Crossing(slowest, count // inner, inner))
            inner = count
    return tuple(crossings)


def shared(
    groups: Sequence[Sequence[int]], topologies: Sequence[Topology], hardware: Hardware
) -> list[Topology]:
    """
    Returns the topologies of groups that communicate at the same time. At each level
    whose blocks have a limited bandwidth, `sharing` is set to the number of devices of
    a block that use the level.
    """
    found = list(topologies)
    for inner, level in zip((None, *hardware.levels), hardware.levels, strict=False):
        if level.block_bandwidth is None:
            continue
        span = 1 if inner is None else inner.span
        users: dict[int, int] = {}
        crossing = [
            (i, j)
            for i, crossings in enumerate(found)
            for j, crossing in enumerate(crossings)
            if crossing.level.name == level.name
        ]
        for i, _ in crossing:
            for device in groups[i]:
                users[device // span] = users.get(device // span, 0) + 1
        for i, j in crossing:
            sharing = max(users[device // span] for device in groups[i])
            crossings = list(found[i])
            crossings[j] = replace(crossings[j], sharing=sharing)
            found[i] = tuple(crossings)
    return found


def of_kind(kind: str, crossings: Topology) -> Topology:
    """
    Returns `crossings` for a kind of communication, such as `all_reduce`. A profile
    then gives the figures of this kind.
    """
    return tuple([replace(crossing, kind=kind) for crossing in crossings])


def _overhead(crossings: Topology) -> float:
    """
    Returns the seconds that a collective takes in addition to its messages. The result
    is 0 without a profile.
    """
    figures = [crossing.figures for crossing in crossings]
    return max((f.overhead for f in figures if f is not None), default=0.0)


def _is_profiled(crossings: Topology) -> bool:
    return bool(crossings) and crossings[-1].level.profile is not None


def _level_by_level(size: float, crossings: Topology) -> float:
    """
    Returns the seconds of a reduce-scatter or all-gather of a buffer of `size` bytes by
    rings within each level, one level after the other.
    """
    seconds = 0.0
    for crossing in crossings:
        n = crossing.blocks
        part = size / crossing.inner
        seconds += (n - 1) * (crossing.latency + part / (n * crossing.bandwidth))
        seconds += part * crossing.per_copied_byte / 2
    return seconds


def _one_ring(size: float, crossings: Topology) -> float:
    """
    Returns the seconds of a reduce-scatter or all-gather of `size` bytes along rings of
    all devices. There are as many rings as a block has devices. Each ring enters and
    leaves a block through a different device, so all levels are busy at the same time.
    If the devices of a block do not share data, there is a single ring.
    """
    devices = crossings[-1].devices
    latency = sum((s.blocks - 1) * s.latency * devices / s.devices for s in crossings)
    slowest = min(crossing.block_rate for crossing in crossings)
    copied = size * crossings[0].per_copied_byte / 2
    return latency + (devices - 1) / devices * size / slowest + copied


def _ring_pass(size: float, crossings: Topology) -> float:
    if not _is_profiled(crossings) or len(crossings) == 1:
        return _level_by_level(size, crossings)
    if not _shares(crossings):
        return _one_ring(size, crossings)
    return min(_level_by_level(size, crossings), _one_ring(size, crossings))


def _shares(crossings: Topology) -> bool:
    """
    Whether, at every level, the devices of a block pass on received data to each other,
    so that each byte enters the block only once.
    """
    figures = [crossing.figures for crossing in crossings]
    return all(f is None or f.shared for f in figures)


def tree_all_reduce_seconds(size: float, crossings: Topology) -> float:
    """
    Returns the seconds of an all-reduce of `size` bytes up and down two binary trees of
    blocks. Each tree carries one half of the data.
    """
    if not crossings:
        return 0.0
    latency = sum(2 * log2(s.blocks) * s.latency for s in crossings)
    slowest = min(crossing.block_rate for crossing in crossings)
    return latency + 2 * size / slowest + size * crossings[0].per_copied_byte


def all_reduce_seconds(size: float, crossings: Topology) -> float:
    """
    Returns the seconds of an all-reduce of `size` bytes. If the outermost level can
    reduce data in its switches, every device sends its data to the switches once, and
    gets the sum back.
    """
    if crossings and crossings[-1].level.in_fabric_reduction:
        outer = crossings[-1]
        part = size / outer.inner
        in_fabric = 2 * outer.latency + part / outer.bandwidth
        return 2 * _ring_pass(size, crossings[:-1]) + in_fabric + _overhead(crossings)
    seconds = 2 * _ring_pass(size, crossings)
    if _is_profiled(crossings):
        seconds = min(seconds, tree_all_reduce_seconds(size, crossings))
    return seconds + _overhead(crossings)


def all_gather_seconds(size: float, crossings: Topology) -> float:
    """Returns the seconds of an all-gather whose result has `size` bytes on each device."""
    return _ring_pass(size, crossings) + _overhead(crossings)


def reduce_scatter_seconds(size: float, crossings: Topology) -> float:
    """
    Returns the seconds of a reduce-scatter whose operand has `size` bytes on each device.
    """
    return _ring_pass(size, crossings) + _overhead(crossings)


def all_to_all_seconds(size: float, crossings: Topology) -> float:
    """
    Returns the seconds of an all-to-all. Each device divides a buffer of `size` bytes
    into equal parts, and exchanges one part with every other device of the group, one
    after the other. The root of a gather or scatter of `size` bytes takes the same
    time.
    """
    devices = crossings[-1].devices if crossings else 1
    seconds = _overhead(crossings)
    for crossing in crossings:
        peers = (crossing.blocks - 1) * crossing.inner
        seconds += (
            peers * crossing.latency + peers / devices * size / crossing.bandwidth
        )
    return seconds


def broadcast_seconds(size: float, crossings: Topology) -> float:
    """
    Returns the seconds to pass `size` bytes along a chain of all devices of the group,
    in pieces, so that the slowest link is always busy. A reduction to one device takes
    the same time.
    """
    if not crossings:
        return 0.0
    slowest = min(crossing.bandwidth for crossing in crossings)
    latency = sum((s.blocks - 1) * s.latency for s in crossings)
    return size / slowest + latency + _overhead(crossings)


def shift_seconds(size: float, crossings: Topology) -> float:
    """
    Returns the seconds in which each device of the group passes `size` bytes to the
    next one.
    """
    if not crossings:
        return 0.0
    slowest = max(s.latency + size / s.bandwidth for s in crossings)
    return slowest + _overhead(crossings)


def occupies(source: int, target: int, hardware: Hardware) -> bool:
    """Whether an asynchronous send from `source` to `target` keeps the sender busy."""
    if source == target:
        return False
    figures = hardware.level_between(source, target).figures
    return figures is not None and figures.of_kind("send").occupies


def sharing_of(
    pairs: Sequence[tuple[int, int]], pair: tuple[int, int], hardware: Hardware
) -> int:
    """
    Returns the number of sends that share the link of the send `pair`. `pairs` holds
    all sends at this time, as pairs of sender and receiver. Sends that leave the same
    block of devices over the same level share a link, unless the devices of a block
    have bandwidth of their own; then the result is 1.
    """
    level = hardware.level_between(*pair)
    if level.block_bandwidth is None:
        return 1
    # Compare names, because a route changes the figures of a level.
    place = [each.name for each in hardware.levels].index(level.name)
    span = hardware.levels[place - 1].span if place else 1
    return sum(
        source // span == pair[0] // span
        and hardware.level_between(source, target).name == level.name
        for source, target in pairs
    )


def send_seconds(
    size: float, source: int, target: int, hardware: Hardware, sharing: int = 1
) -> float:
    """
    Returns the seconds to send `size` bytes from device `source` to device `target`,
    while `sharing` devices of the sender's block send. The result is 0 if `source` and
    `target` are the same device.
    """
    if source == target:
        return 0.0
    level = hardware.level_between(source, target)
    return shift_seconds(size, (Crossing(level, 2, 1, sharing, "send"),))
