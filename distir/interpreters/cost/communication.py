"""
The time that communication takes: alpha-beta models over the levels of links.

A group of devices is reduced to its `Topology`: at each level of links the number of
blocks that communicate through it. Bandwidth-optimal rings run level by level, innermost
first, on what the level inside has left to do: a reduce-scatter of S bytes over g devices
of a node and then N nodes costs `(g-1)(a + S/(g B))` inside and `(N-1)(a' + S/(g N B'))`
outside. An all-reduce is a reduce-scatter and an all-gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distir.interpreters.cost.hardware import Hardware, LinkLevel


@dataclass(frozen=True)
class Stage:
    """
    One level of a group: `blocks` parts of the group, each of `inner` devices that the
    levels inside connect already, talk through `level`.
    """

    level: LinkLevel
    blocks: int
    inner: int


Topology = tuple[Stage, ...]
"""The levels that a group crosses, innermost first; empty for a single device."""


def topology(group: Sequence[int], hardware: Hardware) -> Topology:
    """
    The levels that a group of devices crosses. A group that is spread unevenly over the
    blocks of a level is treated as one ring over the outermost level that it crosses.
    """
    stages: list[Stage] = []
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
            return (Stage(hardware.level_within(level, None, group), size, 1),)
        count = min(counts.values())
        even = even and max(counts.values()) == count and count % inner == 0
        if even and count > inner:
            slowest = hardware.level_within(level, within, group)
            stages.append(Stage(slowest, count // inner, inner))
            inner = count
    return tuple(stages)


def _ring_pass(size: float, stages: Topology) -> float:
    """Seconds of a reduce-scatter or all-gather of a buffer of `size` bytes."""
    seconds = 0.0
    for stage in stages:
        n, level = stage.blocks, stage.level
        part = size / stage.inner
        seconds += (n - 1) * (level.latency + part / (n * level.bandwidth))
    return seconds


def all_reduce_seconds(size: float, stages: Topology) -> float:
    """
    Seconds of an all-reduce of `size` bytes. Where the outermost level reduces in the
    fabric, every device sends its part up once and gets the sum back.
    """
    if stages and stages[-1].level.in_fabric_reduction:
        outer = stages[-1]
        part = size / outer.inner
        in_fabric = 2 * outer.level.latency + part / outer.level.bandwidth
        return 2 * _ring_pass(size, stages[:-1]) + in_fabric
    return 2 * _ring_pass(size, stages)


def all_gather_seconds(size: float, stages: Topology) -> float:
    """Seconds of an all-gather whose result has `size` bytes on each device."""
    return _ring_pass(size, stages)


def reduce_scatter_seconds(size: float, stages: Topology) -> float:
    """Seconds of a reduce-scatter whose operand has `size` bytes on each device."""
    return _ring_pass(size, stages)


def all_to_all_seconds(size: float, stages: Topology) -> float:
    """
    Seconds in which each device exchanges equal parts of a buffer of `size` bytes with
    all others of the group, one after the other; also those in which the root of a
    gather or scatter exchanges its parts of the whole buffer.
    """
    devices = stages[-1].blocks * stages[-1].inner if stages else 1
    seconds = 0.0
    for stage in stages:
        peers = (stage.blocks - 1) * stage.inner
        level = stage.level
        seconds += peers * level.latency + peers / devices * size / level.bandwidth
    return seconds


def broadcast_seconds(size: float, stages: Topology) -> float:
    """
    Seconds to pass `size` bytes along a chain of all devices of the group, in pieces, so
    that the slowest link is always busy; also those of a reduction to one device.
    """
    if not stages:
        return 0.0
    slowest = min(stage.level.bandwidth for stage in stages)
    return size / slowest + sum((s.blocks - 1) * s.level.latency for s in stages)


def shift_seconds(size: float, stages: Topology) -> float:
    """Seconds in which each device passes `size` bytes to the next one of the group."""
    if not stages:
        return 0.0
    return max(s.level.latency + size / s.level.bandwidth for s in stages)


def send_seconds(size: float, source: int, target: int, hardware: Hardware) -> float:
    """Seconds to send `size` bytes from one device to another; 0 to itself."""
    if source == target:
        return 0.0
    level = hardware.level_between(source, target)
    return level.latency + size / level.bandwidth
