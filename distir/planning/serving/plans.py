"""Plans of a service, and the performance of these plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from distir.serving.metrics import ServiceMetrics
from distir.serving.replica import ReplicaLimits


@dataclass(frozen=True, order=True)
class ReplicaShape:
    """
    The degrees of tensor (`t`), pipeline (`p`) and expert parallelism (`e`) of a
    replica. The `e` devices of an expert-parallel group divide the sequences among
    themselves.
    """

    t: int
    p: int
    e: int

    @property
    def devices(self) -> int:
        """The number of devices of a replica."""
        return self.t * self.p * self.e

    def __str__(self) -> str:
        degrees = {"t": self.t, "p": self.p, "e": self.e}
        return " ".join(f"{k}={v}" for k, v in degrees.items() if v > 1) or "t=1"


@dataclass(frozen=True)
class ReplicaPool:
    """
    A pool of `count` replicas of one shape, with their limits. `static_share` is the
    share of a device's memory for parameters and caches, and `step_share` the share
    that steps need.
    """

    shape: ReplicaShape
    count: int
    limits: ReplicaLimits
    static_share: float
    step_share: float

    @property
    def devices(self) -> int:
        """The number of devices of all replicas."""
        return self.count * self.shape.devices

    def __str__(self) -> str:
        return f"{self.shape} d={self.count}"

    def to_json(self) -> dict[str, Any]:
        """Returns the pool as JSON data."""
        shape, limits = self.shape, self.limits
        return {
            "t": shape.t,
            "p": shape.p,
            "e": shape.e,
            "replicas": self.count,
            "devices": self.devices,
            "cache_tokens": limits.cache_tokens,
            "max_sequences": limits.max_sequences,
            "batched_tokens": limits.batched_tokens,
            "static_share": self.static_share,
            "step_share": self.step_share,
        }


@dataclass(frozen=True)
class ServicePlan:
    """
    A plan of a service. The replicas `generating` generate tokens. The replicas
    `reading` read prompts; if `reading` is None, the replicas `generating` do both.
    """

    generating: ReplicaPool
    reading: ReplicaPool | None = None

    @property
    def is_disaggregated(self) -> bool:
        """Whether separate replicas read the prompts."""
        return self.reading is not None

    @property
    def devices(self) -> int:
        """The number of devices of all replicas."""
        others = 0 if self.reading is None else self.reading.devices
        return self.generating.devices + others

    def __str__(self) -> str:
        if self.reading is None:
            return f"{self.generating}, aggregated"
        return f"prefill {self.reading} and decode {self.generating}, disaggregated"

    def to_json(self) -> dict[str, Any]:
        """Returns the plan as JSON data."""
        found: dict[str, Any] = {
            "placement": "disaggregated" if self.reading else "aggregated",
            "devices": self.devices,
        }
        if self.reading is None:
            return found | {"replica": self.generating.to_json()}
        return found | {
            "prefill": self.reading.to_json(),
            "decode": self.generating.to_json(),
        }


def fewest_devices(found: tuple[ServicePlan, float]) -> tuple[int, float, str]:
    """
    Returns a sort key for pairs of a plan and the rate that it sustains. Plans with
    fewer devices come first, and among plans with equally many devices the highest
    rate.
    """
    plan, rate = found
    return plan.devices, -rate, str(plan)


@dataclass(frozen=True)
class LoadPoint:
    """
    A plan under a load of `rate` requests/s; an infinite rate means that all requests
    arrive at once. `ttft_s` and `tpot_s` are taken at the percentile of the limits, and
    `is_within` says whether both are within the limits.
    """

    plan: ServicePlan
    rate: float
    tokens_per_s: float
    ttft_s: float
    tpot_s: float
    is_within: bool
    metrics: ServiceMetrics

    @property
    def tokens_per_s_and_device(self) -> float:
        """The generated tokens per second and device."""
        return self.tokens_per_s / self.plan.devices

    def to_json(self) -> dict[str, Any]:
        """Returns the point as JSON data."""
        return {
            "plan": self.plan.to_json(),
            "rate": self.rate if self.rate < inf else None,
            "tokens_per_s_and_device": self.tokens_per_s_and_device,
            "within_limits": self.is_within,
            **self.metrics.to_json(),
        }


@dataclass(frozen=True)
class LatencyLimits:
    """
    Limits of latencies in seconds: the time to the first token (TTFT), and the time per
    token after it (TPOT). `percentile` % of the requests must keep them.
    """

    ttft_s: float
    tpot_s: float
    percentile: int

    def point(
        self, plan: ServicePlan, rate: float, tokens_per_s: float, found: ServiceMetrics
    ) -> LoadPoint:
        """Returns the load point of a simulated load, with the metrics `found`."""
        ttft, tpot = found.ttft_s(self.percentile), found.tpot_s(self.percentile)
        within = ttft <= self.ttft_s and tpot <= self.tpot_s
        return LoadPoint(plan, rate, tokens_per_s, ttft, tpot, within, found)

    def to_json(self) -> dict[str, float | int | None]:
        """Returns the limits as JSON data. A latency without a limit is None."""
        data: dict[str, float | int | None] = {}
        for name, value in asdict(self).items():
            data[name] = None if value == inf else value
        return data


def latency_front(points: Sequence[LoadPoint], ttft_s: float) -> list[LoadPoint]:
    """
    Returns the Pareto front of the time per token and the tokens per second and device,
    in ascending order of the time. Points with a time to the first token above
    `ttft_s`, or with an infinite rate, are left out.
    """
    front = list[LoadPoint]()
    kept = [p for p in points if p.ttft_s <= ttft_s and p.rate < inf]
    for point in sorted(kept, key=lambda p: (p.tpot_s, -p.tokens_per_s_and_device)):
        best = front[-1].tokens_per_s_and_device if front else 0.0
        if point.tokens_per_s_and_device > best:
            front.append(point)
    return front
