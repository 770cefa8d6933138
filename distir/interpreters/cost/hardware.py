"""A cluster as plain numbers: what the cost functions compute with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from xdsl.dialects.builtin import FloatAttr

from distir.dialects.device import ClusterOp, KindOp, LinkOp
from distir.errors import DistIRError
from distir.interpreters.cost.profiles import LinkFigures, Profile


@dataclass(frozen=True)
class DeviceKind:
    """
    One kind of device: usable memory in bytes, memory bandwidth in bytes/s, FLOP/s per
    element type (`default` serves the others), seconds from issuing an op to its start,
    bytes that memory is handed out in multiples of; what it reaches in practice.
    """

    name: str
    memory: int
    memory_bandwidth: float
    peak_flops: Mapping[str, float]
    launch_latency: float
    allocation_block: int = 1
    profile: Profile | None = None

    @staticmethod
    def of(op: KindOp, profile: Profile | None = None) -> DeviceKind:
        """The kind that a `device.kind` declares."""
        rates = {
            name: rate.value.data
            for name, rate in op.peak_flops.data.items()
            if isinstance(rate, FloatAttr)
        }
        return DeviceKind(
            op.sym_name.data,
            op.memory.value.data,
            op.memory_bandwidth.value.data,
            rates,
            op.launch_latency.value.data,
            1 if op.allocation_block is None else op.allocation_block.value.data,
            profile,
        )

    def peak(self, element_type: str) -> float:
        """FLOP/s for an element type such as `f16`. Raises DistIRError."""
        rate = self.peak_flops.get(element_type, self.peak_flops.get("default"))
        if rate is None:
            raise DistIRError(
                f"device kind @{self.name} gives no peak_flops for {element_type}; add "
                f"it to the cluster, or a `default`"
            )
        return rate


@dataclass(frozen=True)
class LinkLevel:
    """
    Consecutive groups of `span` devices reach each other at `bandwidth` bytes/s per
    device and direction, `latency` seconds per message.
    """

    name: str
    span: int
    bandwidth: float
    latency: float
    in_fabric_reduction: bool
    block_bandwidth: float | None = None
    profile: Profile | None = field(default=None, compare=False)

    @property
    def figures(self) -> LinkFigures | None:
        """What it reaches in practice; None without a profile. Raises DistIRError."""
        return None if self.profile is None else self.profile.link(self.name)

    @staticmethod
    def of(op: LinkOp, profile: Profile | None = None) -> LinkLevel:
        """The level that a `device.link` declares."""
        reduces = op.in_fabric_reduction
        return LinkLevel(
            op.sym_name.data,
            op.spans.value.data,
            op.bandwidth.value.data,
            op.latency.value.data,
            reduces is not None and bool(reduces.value.data),
            None if op.block_bandwidth is None else op.block_bandwidth.value.data,
            profile,
        )


@dataclass(frozen=True)
class Hardware:
    """The kind of each device, by device id, and the levels of links, innermost first."""

    name: str
    kinds: tuple[DeviceKind, ...]
    levels: tuple[LinkLevel, ...]

    @staticmethod
    def of(cluster: ClusterOp, profiles: Sequence[Profile] = ()) -> Hardware:
        """
        What a `device.cluster` declares, with a profile for each of its kinds of devices
        or none at all. Links have the figures of the first of them that knows the link.
        Raises DistIRError.
        """
        of_kind = _profiles_by_kind(cluster, profiles)
        by_device: dict[int, DeviceKind] = {}
        for op in cluster.kinds:
            kind = DeviceKind.of(op, of_kind.get(op.sym_name.data))
            by_device.update(dict.fromkeys(op.devices.data, kind))
        return Hardware(
            cluster.sym_name.data,
            tuple(by_device[i] for i in range(len(by_device))),
            tuple(
                LinkLevel.of(op, _link_profile(op, profiles)) for op in cluster.links
            ),
        )

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all devices are of one kind."""
        return len(set(map(id, self.kinds))) == 1

    def distinct_kinds(self, devices: Sequence[int]) -> list[DeviceKind]:
        """The kinds among these devices; that of device 0 if there are none."""
        if self.is_uniform or not devices:
            return [self.kinds[0]]
        return list({id(self.kinds[i]): self.kinds[i] for i in devices}.values())

    def level_between(self, first: int, second: int) -> LinkLevel:
        """The innermost level that connects two devices."""
        for level in self.levels:
            if first // level.span == second // level.span:
                return level
        raise DistIRError(
            f"no link of cluster @{self.name} connects devices {first} and {second}"
        )


def _profiles_by_kind(
    cluster: ClusterOp, profiles: Sequence[Profile]
) -> dict[str, Profile]:
    kinds = [op.sym_name.data for op in cluster.kinds]
    shown = ", ".join(f"@{kind}" for kind in kinds)
    found: dict[str, Profile] = {}
    for profile in profiles:
        if profile.device not in kinds:
            raise DistIRError(
                f"profile {profile.name} is for device @{profile.device}, but cluster "
                f"@{cluster.sym_name.data} has {shown}; choose a profile for these"
            )
        if profile.device in found:
            raise DistIRError(
                f"profiles {found[profile.device].name} and {profile.name} are both for "
                f"device @{profile.device}; choose one of them"
            )
        found[profile.device] = profile
    missing = [kind for kind in kinds if kind not in found]
    if found and missing:
        raise DistIRError(
            f"no profile is for device @{missing[0]} of cluster "
            f"@{cluster.sym_name.data}; give one for each of {shown}, or none"
        )
    return found


def _link_profile(op: LinkOp, profiles: Sequence[Profile]) -> Profile | None:
    knowing = [p for p in profiles if op.sym_name.data in p.links]
    return next(iter(knowing or profiles), None)
