"""
A service of several replicas. In an aggregated service each replica reads prompts and
generates tokens. In a disaggregated service, one pool of replicas reads prompts and
sends the caches to a second pool of replicas, which generates tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from distir.errors import DistIRError
from distir.serving.metrics import Served, ServiceMetrics
from distir.serving.replica import Progress, Replica, ReplicaLimits
from distir.serving.requests import TokenRequest
from distir.serving.step_times import StepTimes


@dataclass(frozen=True)
class Pool:
    """
    A pool of `count` equal replicas, with the times of their steps and their limits.
    """

    times: StepTimes
    limits: ReplicaLimits
    count: int = 1


@dataclass(frozen=True)
class CacheTransfer:
    """
    The time of sending the cache of a request to another replica: `latency_s` seconds,
    and `token_s` seconds for each token. A replica sends one cache after the other.
    """

    latency_s: float
    token_s: float


def serve(requests: Sequence[TokenRequest], pool: Pool) -> ServiceMetrics:
    """
    Simulates an aggregated service, in which each replica reads prompts and generates
    tokens. A new request goes to the replica with the fewest requests in progress.
    `requests` must be in order of arrival. Raises DistIRError if a request does not fit
    into the cache.
    """
    replicas, found = _run(requests, pool)
    served = [
        Served(p.request.arrival_s, p.first_s, p.end_s, p.request.generate)
        for p in found
    ]
    return ServiceMetrics.of(served, replicas)


def serve_generation(requests: Sequence[TokenRequest], pool: Pool) -> ServiceMetrics:
    """
    Simulates replicas that only generate tokens. When a request arrives, its first
    token and the cache of its prompt are already there. Raises DistIRError if a request
    does not fit into the cache.
    """
    rest = [
        TokenRequest(r.arrival_s, r.prompt + 1, r.generate - 1, r.prompt + 1)
        for r in requests
        if r.generate > 1
    ]
    replicas, found = _run(rest, pool)
    served = [
        Served(
            p.request.arrival_s, p.request.arrival_s, p.end_s, p.request.generate + 1
        )
        for p in found
    ]
    return ServiceMetrics.of(served, replicas)


def serve_disaggregated(
    requests: Sequence[TokenRequest],
    reading: Pool,
    generating: Pool,
    transfer: CacheTransfer,
) -> ServiceMetrics:
    """
    Simulates a disaggregated service. The replicas of `reading` read prompts, generate
    the first tokens, and send the caches to the replicas of `generating`. Raises
    DistIRError if a request does not fit into the cache.
    """
    prompts = [TokenRequest(r.arrival_s, r.prompt, 1, r.cached) for r in requests]
    readers, read = _run(prompts, reading)
    # A replica's link is busy with one cache after the other.
    links: dict[int, float] = {}
    order = sorted(range(len(read)), key=lambda i: (read[i].first_s, i))
    moved = list[tuple[float, int]]()
    for i in order:
        if requests[i].generate == 1:
            continue
        replica = readers.index_of[i]
        begin = max(read[i].first_s, links.get(replica, 0.0))
        at = begin + transfer.latency_s + requests[i].prompt * transfer.token_s
        links[replica] = at
        moved.append((at, i))
    moved.sort()
    rest = [
        TokenRequest(
            at, requests[i].prompt + 1, requests[i].generate - 1, requests[i].prompt + 1
        )
        for at, i in moved
    ]
    generators, generated = _run(rest, generating)
    ends = {i: p.end_s for (_, i), p in zip(moved, generated, strict=True)}
    served = [
        Served(r.arrival_s, p.first_s, ends.get(i, p.end_s), r.generate)
        for i, (r, p) in enumerate(zip(requests, read, strict=True))
    ]
    return ServiceMetrics.of(served, Replicas.both(readers, generators))


@dataclass(frozen=True)
class Replicas:
    """
    The replicas after a simulation, and for each request the index of the replica that
    served the request.
    """

    replicas: Sequence[Replica]
    index_of: Sequence[int]

    @staticmethod
    def both(first: Replicas, second: Replicas) -> Replicas:
        """
        Returns the replicas of two pools together, with the request assignment of the
        first pool.
        """
        return Replicas([*first.replicas, *second.replicas], first.index_of)

    @property
    def preemptions(self) -> int:
        """The number of preemptions in all replicas."""
        return sum(replica.preemptions for replica in self.replicas)

    @property
    def steps(self) -> int:
        """The number of steps of all replicas."""
        return sum(replica.steps for replica in self.replicas)

    @property
    def largest_batch(self) -> int:
        """The largest number of sequences that got a token in one step of a replica."""
        return max((replica.largest_batch for replica in self.replicas), default=0)

    @property
    def cache_share(self) -> float:
        """The largest share of its cache that a replica used."""
        return max(
            (r.most_used / r.limits.cache_tokens for r in self.replicas), default=0.0
        )


def _run(
    requests: Sequence[TokenRequest], pool: Pool
) -> tuple[Replicas, Sequence[Progress]]:
    """
    Simulates requests on a pool. Returns the pool's replicas, and the final state of
    each request, in the order of `requests`. Raises DistIRError if a request does not
    fit into the cache or never ends.
    """
    _check_sizes(requests, pool.limits)
    replicas = [Replica(pool.times, pool.limits) for _ in range(pool.count)]
    done: dict[int, Progress] = {}
    index_of = [0] * len(requests)
    # Events are ends of steps: second, a number that breaks ties, replica, lane.
    events = list[tuple[float, int, int, int]]()
    number = arrived = 0

    def begin(which: int, place: int, now: float) -> None:
        nonlocal number
        lane = replicas[which].lanes[place]
        until = requests[arrived].arrival_s if arrived < len(requests) else inf
        end = replicas[which].begin(lane, now, until)
        if end is not None:
            number += 1
            heappush(events, (end, number, which, place))

    def wake(which: int, now: float) -> None:
        """
        Begins steps at second `now` in the lanes of replica `which` that have no step
        in progress.
        """
        for place, lane in enumerate(replicas[which].lanes):
            if not lane.is_busy:
                begin(which, place, now)

    while arrived < len(requests) or events:
        if events and (
            arrived == len(requests) or events[0][0] < requests[arrived].arrival_s
        ):
            now, _, which, place = heappop(events)
            replica = replicas[which]
            lane = replica.lanes[place]
            for progress in replica.finish(lane, now):
                done[progress.index] = progress
            wake(which, now)
            continue
        now = requests[arrived].arrival_s
        touched = dict[int, None]()
        while arrived < len(requests) and requests[arrived].arrival_s == now:
            which = min(range(pool.count), key=lambda i: (replicas[i].outstanding, i))
            index_of[arrived] = which
            replicas[which].push(arrived, requests[arrived])
            touched[which] = None
            arrived += 1
        for which in touched:
            wake(which, now)
    if len(done) != len(requests):
        raise DistIRError(
            f"{len(requests) - len(done)} of {len(requests)} requests never end"
        )
    return Replicas(replicas, index_of), [done[i] for i in range(len(requests))]


def _check_sizes(requests: Sequence[TokenRequest], limits: ReplicaLimits) -> None:
    """Raises DistIRError if a single request does not fit into the cache."""
    longest = max((request.tokens for request in requests), default=0)
    if limits.room(longest) > limits.cache_tokens:
        raise DistIRError(
            f"a request of {longest} tokens does not fit into a cache of "
            f"{limits.cache_tokens} tokens"
        )
