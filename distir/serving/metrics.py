"""The metrics of a simulated service: latencies and throughput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any, NamedTuple, Protocol

PERCENTILES = (50, 90, 99)
"""The reported percentiles."""


class Served(NamedTuple):
    """
    A request after it was served: the seconds of its arrival, of its first token and of
    its end, and the number of generated tokens.
    """

    arrival_s: float
    first_s: float
    end_s: float
    generated: int

    @property
    def ttft_s(self) -> float:
        """The time to the first token, in seconds."""
        return self.first_s - self.arrival_s

    @property
    def tpot_s(self) -> float:
        """
        The mean time per token after the first token, in seconds; 0 if there is only
        one token.
        """
        behind = self.generated - 1
        return (self.end_s - self.first_s) / behind if behind else 0.0


class _Counts(Protocol):
    """
    The counters that metrics take from replicas: of preemptions and steps, the largest
    batch, and the largest used share of the cache.
    """

    @property
    def preemptions(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def largest_batch(self) -> int: ...
    @property
    def cache_share(self) -> float: ...


@dataclass(frozen=True)
class ServiceMetrics:
    """
    The metrics of a simulated service.

    `preemptions` and `steps` are totals over the service's replicas. `largest_batch` is
    the largest number of sequences that got a token in one step. `cache_share` is the
    largest share of its cache that a replica used.
    """

    served: Sequence[Served]
    preemptions: int
    steps: int
    largest_batch: int
    cache_share: float

    @staticmethod
    def of(served: Sequence[Served], counts: _Counts) -> ServiceMetrics:
        """
        Returns the metrics of the requests `served`. `counts` has the counters of the
        replicas that served these requests.
        """
        return ServiceMetrics(
            served,
            counts.preemptions,
            counts.steps,
            counts.largest_batch,
            counts.cache_share,
        )

    def steady(self) -> ServiceMetrics:
        """
        Returns the metrics of the requests in the steady state. Two groups of requests
        are left out: the first fifth, which arrive while the service fills, and the
        last tenth, after which the service empties.
        """
        count = len(self.served)
        return replace(self, served=self.served[count // 5 : count - count // 10])

    @property
    def generated(self) -> int:
        """The number of generated tokens."""
        return sum(request.generated for request in self.served)

    @cached_property
    def seconds(self) -> float:
        """The seconds from the first arrival to the last token."""
        first = min(request.arrival_s for request in self.served)
        return max(request.end_s for request in self.served) - first

    @property
    def tokens_per_s(self) -> float:
        """The generated tokens per second, from the first arrival to the last token."""
        return self.generated / self.seconds if self.seconds else 0.0

    @cached_property
    def _ttfts(self) -> list[float]:
        return sorted(request.ttft_s for request in self.served)

    @cached_property
    def _tpots(self) -> list[float]:
        found = [r.tpot_s for r in self.served if r.generated > 1]
        return sorted(found) or [0.0]

    def ttft_s(self, percentile: float) -> float:
        """Returns a percentile of the time to the first token, in seconds."""
        return percentile_of(self._ttfts, percentile)

    def tpot_s(self, percentile: float) -> float:
        """
        Returns a percentile of the mean time per token after the first token, in
        seconds. Requests with a single token are left out.
        """
        return percentile_of(self._tpots, percentile)

    def to_json(self) -> dict[str, Any]:
        """Returns the metrics as JSON data."""
        return {
            "requests": len(self.served),
            "tokens_per_s": self.tokens_per_s,
            "ttft_s": {f"p{p}": self.ttft_s(p) for p in PERCENTILES},
            "tpot_s": {f"p{p}": self.tpot_s(p) for p in PERCENTILES},
            "preemptions": self.preemptions,
            "steps": self.steps,
            "largest_batch": self.largest_batch,
            "cache_share": self.cache_share,
        }


def percentile_of(ordered: Sequence[float], percentile: float) -> float:
    """
    Returns the smallest value of `ordered` (in ascending order) such that at least
    `percentile` % of the values do not exceed it.
    """
    place = max(ceil(percentile / 100 * len(ordered)), 1) - 1
    return ordered[place]
