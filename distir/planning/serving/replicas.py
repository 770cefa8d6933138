"""The replicas that a search for a service plan evaluates, and their highest loads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from distir.planning.serving.plans import LoadPoint, ReplicaPool, ReplicaShape
from distir.serving.replica import ReplicaLimits
from distir.serving.step_times import StepTable


class JudgedReplica(NamedTuple):
    """
    A replica that the search evaluates: its shape, step times and limits.
    `static_share` is the share of a device's memory for parameters and caches,
    `step_share` the share for steps.
    """

    shape: ReplicaShape
    table: StepTable
    limits: ReplicaLimits
    static_share: float
    step_share: float

    def pool(self, count: int = 1) -> ReplicaPool:
        """Returns a pool of `count` such replicas."""
        return ReplicaPool(
            self.shape, count, self.limits, self.static_share, self.step_share
        )


@dataclass(frozen=True)
class Refused:
    """A shape of a replica that cannot serve the requests, and the reason."""

    shape: ReplicaShape
    reason: str


@dataclass
class Highest:
    """
    The highest load of one replica within the limits, in requests/s, with its load
    point, and all simulated load points. The load point is None if no load is within
    the limits.
    """

    replica: JudgedReplica
    rate: float = 0.0
    point: LoadPoint | None = None
    points: list[LoadPoint] = field(default_factory=list[LoadPoint])

    @property
    def rate_per_device(self) -> float:
        """The highest load in requests per second and device."""
        return self.rate / self.replica.shape.devices
