"""Replicas that a search for the plan of a service judges, and what they achieve."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from distir.planning.serving.plans import LoadPoint, ReplicaPool, ReplicaShape
from distir.serving.replica import ReplicaLimits
from distir.serving.step_times import StepTable


class JudgedReplica(NamedTuple):
    """A replica's shape with its step times and its limits."""

    shape: ReplicaShape
    table: StepTable
    limits: ReplicaLimits
    static_share: float
    step_share: float

    def pool(self, count: int = 1) -> ReplicaPool:
        """Returns so many of these replicas."""
        return ReplicaPool(
            self.shape, count, self.limits, self.static_share, self.step_share
        )


@dataclass(frozen=True)
class Refused:
    """A shape that cannot serve the requests, and why."""

    shape: ReplicaShape
    reason: str


@dataclass
class Highest:
    """
    The highest load of one replica within the limits, or None if none is, and all loads
    that were simulated.
    """

    replica: JudgedReplica
    rate: float = 0.0
    point: LoadPoint | None = None
    points: list[LoadPoint] = field(default_factory=list[LoadPoint])

    @property
    def rate_per_device(self) -> float:
        """The highest load in requests per second and device."""
        return self.rate / self.replica.shape.devices
