"""A cluster as plain numbers, for the cost functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from xdsl.dialects.builtin import FloatAttr, IntegerAttr

from distir.dialects.device import ClusterOp, KindOp, LinkOp, RouteOp
from distir.errors import DistIRError
from distir.interpreters.simulator.fusion import SCALES
from distir.interpreters.simulator.library_kernels import CASTS
from distir.interpreters.simulator.profiles.profile import (
    LinkFigures,
    MemoryFigures,
    Profile,
)


@dataclass(frozen=True)
class DeviceKind:
    """
    One kind of device.

    - `memory`: the usable bytes of memory; `memory_bandwidth`: bytes/s;
    - `peak_flops`: FLOP/s by element type; `default` is for types that are not listed;
    - `launch_latency`: the seconds from issuing an op to its start;
    - `allocation_block`: memory is allocated in multiples of this number of bytes;
    - `library_memory`: the bytes that libraries always take; `communicator_memory`: the
      bytes for each group of devices that the device communicates with; both are from
      the cluster, or else from the profile;
    - `profile`: the performance in practice, if known;
    - `host_bandwidth`: bytes/s to and from the memory of the host, if known;
    - `host_memory`: the bytes of the host's memory that the device may use, if known.
    """

    name: str
    memory: int
    memory_bandwidth: float
    peak_flops: Mapping[str, float]
    launch_latency: float
    allocation_block: int = 1
    library_memory: int = 0
    communicator_memory: int = 0
    profile: Profile | None = None
    host_bandwidth: float | None = None
    host_memory: int | None = None

    @staticmethod
    def of(op: KindOp, profile: Profile | None = None) -> DeviceKind:
        """Returns the kind of device that the op `device.kind` declares."""
        rates = {
            name: rate.value.data
            for name, rate in op.peak_flops.data.items()
            if isinstance(rate, FloatAttr)
        }
        keeps = MemoryFigures() if profile is None else profile.memory

        def given(figure: IntegerAttr | None, default: int) -> int:
            return default if figure is None else figure.value.data

        return DeviceKind(
            op.sym_name.data,
            op.memory.value.data,
            op.memory_bandwidth.value.data,
            rates,
            op.launch_latency.value.data,
            given(op.allocation_block, keeps.block),
            given(op.library_memory, keeps.libraries),
            given(op.communicator_memory, keeps.communicator),
            profile,
            None if op.host_bandwidth is None else op.host_bandwidth.value.data,
            None if op.host_memory is None else op.host_memory.value.data,
        )

    def reserved(self, peak: int, held: int) -> int:
        """
        Returns the bytes that the memory allocator reserves on the device for a peak of
        `peak` bytes. `held` bytes of the peak are in use throughout a step. The rest of
        the peak takes more memory, by the profile's fraction `fragments`.
        """
        fragments = 0.0 if self.profile is None else self.profile.memory.fragments
        return peak + round(fragments * (peak - held))

    @property
    def contention(self) -> float:
        """
        The share of a device's speed that computations lose to an asynchronous
        collective.
        """
        return 0.0 if self.profile is None else self.profile.contention

    def peak(self, element_type: str) -> float:
        """
        Returns the FLOP/s for an element type such as `f16`. Raises DistIRError if the
        kind has no figure for this type.
        """
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
    A level of links. Consecutive groups of `span` devices reach each other at
    `bandwidth` bytes/s per device and direction, with `latency` seconds per message.
    `kind` is the kind of links, such as `infiniband`, and the key of their figures in a
    profile.
    """

    name: str
    span: int
    bandwidth: float
    latency: float
    in_fabric_reduction: bool
    block_bandwidth: float | None = None
    profile: Profile | None = field(default=None, compare=False)
    kind: str = ""

    @cached_property
    def figures(self) -> LinkFigures | None:
        """
        The performance of the level in practice, or None without a profile. If the
        profile has no figures for this kind of links, bandwidth and latency come from
        the data sheet, and the software's overheads from the kinds of links that the
        profile has.
        """
        if self.profile is None:
            return None
        known = self.profile.links.get(self.kind)
        if known is not None:
            return known
        return replace(self.profile.unknown_link, latency=self.latency)

    @property
    def is_known(self) -> bool:
        """Whether the profile, if there is one, has figures for this kind of links."""
        return self.profile is None or self.kind in self.profile.links

    @staticmethod
    def of(op: LinkOp, profile: Profile | None = None) -> LinkLevel:
        """Returns the level that the op `device.link` declares."""
        reduces = op.in_fabric_reduction
        return LinkLevel(
            op.sym_name.data,
            op.spans.value.data,
            op.bandwidth.value.data,
            op.latency.value.data,
            reduces is not None and bool(reduces.value.data),
            None if op.block_bandwidth is None else op.block_bandwidth.value.data,
            profile,
            op.kind_name,
        )


@dataclass(frozen=True)
class Route:
    """
    Links between two sets of devices. Their bandwidth and latency differ from those of
    all other links of the same level.
    """

    first: frozenset[int]
    second: frozenset[int]
    bandwidth: float
    latency: float

    @staticmethod
    def of(op: RouteOp) -> Route:
        """Returns the route that the op `device.route` declares."""
        return Route(
            frozenset(op.first.data),
            frozenset(op.second.data),
            op.bandwidth.value.data,
            op.latency.value.data,
        )

    def joins(self, first: int, second: int) -> bool:
        """Whether messages between the devices `first` and `second` take this route."""
        return (first in self.first and second in self.second) or (
            first in self.second and second in self.first
        )


@dataclass(frozen=True)
class Hardware:
    """
    A cluster. `kinds` holds the kind of each device, by device id. `levels` holds the
    levels of links, innermost first. `routes` holds links that differ from their level.
    """

    name: str
    kinds: tuple[DeviceKind, ...]
    levels: tuple[LinkLevel, ...]
    routes: tuple[Route, ...] = ()

    @staticmethod
    def of(cluster: ClusterOp, profiles: Sequence[Profile] = ()) -> Hardware:
        """
        Returns the hardware that the op `device.cluster` declares. `profiles` holds one
        profile for each kind of device of the cluster, or none at all. A level of links
        gets its figures from the first profile that has figures for its kind. Raises
        DistIRError if the profiles do not fit the kinds.
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
            tuple(Route.of(op) for op in cluster.routes),
        )

    @property
    def profile_names(self) -> list[str]:
        """The distinct names of the profiles of the kinds of devices."""
        profiles = [kind.profile for kind in self.kinds]
        return list(dict.fromkeys(p.name for p in profiles if p is not None))

    @property
    def unknown_links(self) -> list[str]:
        """Descriptions of the levels of links whose kind is in no profile."""
        return [
            f"@{level.name}"
            + (f" (kind {level.kind})" if level.kind != level.name else "")
            for level in self.levels
            if not level.is_known
        ]

    @property
    def has_profiles(self) -> bool:
        """Whether the kinds of devices have profiles."""
        return self.kinds[0].profile is not None

    @cached_property
    def delays_scales(self) -> bool:
        """
        Whether the software takes scales of 8-bit floats from earlier steps, so that no
        message carries only scales.
        """
        first = self.kinds[0].profile
        return first is not None and SCALES in first.fusion

    @cached_property
    def keeps_casts(self) -> bool:
        """
        Whether the software keeps parameters that it casts to 8-bit floats for all
        micro-batches of a step.
        """
        first = self.kinds[0].profile
        return first is not None and CASTS in first.fusion

    @cached_property
    def is_fsdp(self) -> bool:
        """
        Whether the software keeps gathered parameters as PyTorch's FSDP does.
        """
        first = self.kinds[0].profile
        return first is not None and first.memory.fsdp

    @cached_property
    def is_ddp(self) -> bool:
        """
        Whether the software reduces the gradients of replicated parameters in buckets
        of its own, as PyTorch's DistributedDataParallel does.
        """
        first = self.kinds[0].profile
        return first is not None and first.memory.ddp

    @cached_property
    def has_foreach(self) -> bool:
        """
        Whether the software updates all parameters at once, as `foreach` says in
        PyTorch's optimizers.
        """
        first = self.kinds[0].profile
        return first is not None and first.memory.foreach

    @cached_property
    def has_measured_ops(self) -> bool:
        """Whether a profile has figures of single ops."""
        profiles = [kind.profile for kind in self.kinds]
        return any(profile is not None and profile.ops for profile in profiles)

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all devices are of one kind."""
        return len(set(map(id, self.kinds))) == 1

    def distinct_kinds(self, devices: Sequence[int]) -> list[DeviceKind]:
        """
        Returns the kinds of `devices` without duplicates. Returns the kind of device 0
        if `devices` is empty.
        """
        if self.is_uniform or not devices:
            return [self.kinds[0]]
        return list({id(self.kinds[i]): self.kinds[i] for i in devices}.values())

    def level_between(self, first: int, second: int) -> LinkLevel:
        """
        Returns the innermost level that connects the devices `first` and `second`. If a
        route connects the two devices, the returned level has the bandwidth and latency
        of the route. Raises DistIRError if no level connects the two devices.
        """
        for level in self.levels:
            if first // level.span == second // level.span:
                for route in self.routes:
                    if route.joins(first, second):
                        return self._changed(level, route.bandwidth, route.latency)
                return level
        raise DistIRError(
            f"no link of cluster @{self.name} connects devices {first} and {second}"
        )

    def level_within(
        self, level: LinkLevel, inner: LinkLevel | None, group: Sequence[int]
    ) -> LinkLevel:
        """
        Returns `level` with the bandwidth and latency of the slowest link that a ring
        of the devices of `group` may take. `inner` is the next inner level; links
        within its blocks are not considered.
        """
        for route in self.routes:
            sides = [[d for d in group if d in s] for s in (route.first, route.second)]
            if any(
                inner is None or a // inner.span != b // inner.span
                for a in sides[0]
                for b in sides[1]
                if a // level.span == b // level.span
            ):
                bandwidth = min(level.bandwidth, route.bandwidth)
                latency = max(level.latency, route.latency)
                level = self._changed(level, bandwidth, latency)
        return level

    @cached_property
    def _changed_levels(self) -> dict[tuple[int, float, float], LinkLevel]:
        return {}

    def _changed(self, level: LinkLevel, bandwidth: float, latency: float) -> LinkLevel:
        """
        Returns `level` with the given bandwidth and latency. Calls with equal arguments
        return the same object.
        """
        key = level.span, bandwidth, latency
        if key not in self._changed_levels:
            changed = replace(level, bandwidth=bandwidth, latency=latency)
            self._changed_levels[key] = changed
        return self._changed_levels[key]


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
    knowing = [p for p in profiles if op.kind_name in p.links]
    return next(iter(knowing or profiles), None)
