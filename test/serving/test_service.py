"""The simulation of services against closed forms and laws of conservation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from random import Random

import pytest

from distir.errors import DistIRError
from distir.serving.metrics import percentile_of
from distir.serving.replica import Replica, ReplicaLimits
from distir.serving.requests import TokenRequest, poisson_workload
from distir.serving.service import (
    CacheTransfer,
    Pool,
    serve,
    serve_disaggregated,
    serve_generation,
)
from distir.serving.step_times import StepTime

LIMITS = ReplicaLimits(100_000, 64, 512)


@dataclass(frozen=True)
class Linear:
    """Steps of constant and of linear parts, divided over some stages."""

    fixed: float = 0.01
    sequence: float = 0.0
    context: float = 0.0
    read: float = 1e-4
    pair: float = 0.0
    stages: int = 1

    def step(self, decoding: int, context: int, new: int, pairs: int) -> StepTime:
        seconds = self.fixed + self.sequence * decoding + self.context * context
        seconds += self.read * new + self.pair * pairs
        return StepTime(seconds, seconds / self.stages)

    def rounds(self, decoding: int, context: int, count: int) -> float:
        each = (self.step(decoding, context + i * decoding, 0, 0) for i in range(count))
        return sum(step.latency_s for step in each)


FULL = Linear(0.01, 1e-4, 1e-8, 1e-5, 1e-10)


def test_one_request_alone_waits_for_nobody() -> None:
    found = serve([TokenRequest(5.0, 100, 11)], Pool(Linear(), LIMITS))
    assert found.ttft_s(50) == pytest.approx(0.01 + 100 * 1e-4)
    assert found.tpot_s(50) == pytest.approx(0.01)


def test_a_long_prompt_is_read_in_chunks() -> None:
    found = serve([TokenRequest(0.0, 1100, 1)], Pool(Linear(), LIMITS))
    # 512 + 512 + 76 tokens.
    assert found.ttft_s(50) == pytest.approx(3 * 0.01 + 1100 * 1e-4)
    assert found.steps == 3


def test_chunks_attend_to_the_chunks_before_them() -> None:
    times = Linear(0.0, read=0.0, pair=1e-6)
    found = serve([TokenRequest(0.0, 1100, 1)], Pool(times, LIMITS))
    assert found.ttft_s(50) == pytest.approx(1100 * 1101 / 2 * 1e-6)


def test_all_at_once_the_throughput_is_a_batch_a_step() -> None:
    requests = poisson_workload(6400, 1, 400).at_rate(inf)
    found = serve(requests, Pool(Linear(read=0.0), LIMITS))
    assert found.largest_batch == 64
    assert found.tokens_per_s == pytest.approx(64 / 0.01, rel=0.01)


def test_one_after_the_other_the_wait_is_that_of_a_queue_with_equal_services() -> None:
    """M/D/1: the mean wait is rho S / 2 (1 - rho)."""
    service, load = 0.1, 0.6
    times = Linear(service, read=0.0)
    requests = poisson_workload(40_000, 1, 1).at_rate(load / service)
    found = serve(requests, Pool(times, replace(LIMITS, batched_tokens=1)))
    waits = [r.ttft_s - service for r in found.served]
    expected = load * service / (2 * (1 - load))
    assert sum(waits) / len(waits) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("admission", ["preempt", "reserve"])
@pytest.mark.parametrize("stages", [1, 3])
def test_every_request_ends_and_no_cache_overflows(
    seed: int, admission: str, stages: int
) -> None:
    random = Random(seed)
    requests = sorted(
        (
            TokenRequest(
                random.uniform(0, 20), random.randint(1, 900), random.randint(1, 200)
            )
            for _ in range(200)
        ),
        key=lambda r: r.arrival_s,
    )
    kind = "reserve" if admission == "reserve" else "preempt"
    limits = ReplicaLimits(random.randint(1100, 5000), 32, 256, stages, kind)
    times = replace(FULL, stages=stages)
    found = serve(requests, Pool(times, limits, random.choice([1, 2])))
    assert len(found.served) == 200
    assert found.generated == sum(r.generate for r in requests)
    assert all(r.arrival_s < r.first_s <= r.end_s for r in found.served)
    assert found.cache_share <= 1
    if admission == "reserve":
        assert found.preemptions == 0
    elif stages == 1 and limits.cache_tokens < 2000:
        assert found.preemptions > 0


WINDOWED = replace(LIMITS, window=100, window_share=0.75)


def test_room_and_pairs_with_windows_in_closed_form() -> None:
    """Of 4 layers 3 keep, and attend to, at most 100 tokens."""
    for tokens in (1, 99, 100, 101, 700):
        kept = tokens + 3 * min(tokens, 100)
        assert WINDOWED.room(tokens) == pytest.approx(kept / 4, rel=1e-12)
    for start, count in ((0, 50), (0, 300), (60, 80), (100, 7), (250, 250)):
        seen = range(start + 1, start + count + 1)
        pairs = sum(n + 3 * min(n, 100) for n in seen) / 4
        assert WINDOWED.pairs(start, count) == pytest.approx(pairs, rel=1e-12)
    assert LIMITS.room(700) == 700 and LIMITS.pairs(60, 80) == 60 * 80 + 80 * 81 / 2


@pytest.mark.parametrize("seed", range(4))
def test_caches_with_windows_hold_more_and_are_empty_in_the_end(seed: int) -> None:
    random = Random(seed)
    requests = [
        TokenRequest(i / 20, random.randint(1, 900), random.randint(1, 200))
        for i in range(200)
    ]
    replicas = [
        Replica(FULL, replace(limits, cache_tokens=1500, max_sequences=32))
        for limits in (LIMITS, WINDOWED)
    ]
    for replica in replicas:
        for index, request in enumerate(requests):
            replica.push(index, request)
        now, (lane,) = 0.0, replica.lanes
        while (end := replica.begin(lane, now, inf)) is not None:
            assert replica.used <= 1500 + 1e-6
            now = end
            replica.finish(lane, now)
        assert not replica.outstanding
        assert abs(replica.used) < 1e-6 and abs(replica.promised) < 1e-6
    assert replicas[1].largest_batch > replicas[0].largest_batch
    assert replicas[1].preemptions < replicas[0].preemptions


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("window_share", [0.0, 0.5])
def test_sequences_take_whole_pages(seed: int, window_share: float) -> None:
    """At any time the room in use is that of the pages of all sequences."""
    random = Random(seed)
    requests = [
        TokenRequest(i / 20, random.randint(1, 900), random.randint(1, 200))
        for i in range(100)
    ]
    limits = replace(
        LIMITS,
        cache_tokens=1600,
        max_sequences=32,
        page=32,
        window=100,
        window_share=window_share,
    )
    room = [n + -n % 32 for n in (1, 32, 33)]
    assert [replace(limits, window_share=0.0).room(n) for n in (1, 32, 33)] == room
    replica = Replica(FULL, limits)
    for index, request in enumerate(requests):
        replica.push(index, request)
    now, (lane,) = 0.0, replica.lanes
    while (end := replica.begin(lane, now, inf)) is not None:
        now = end
        replica.finish(lane, now)
        lengths = [p.length for p in lane.reading]
        for p in lane.decoding.values():
            lengths.append(p.length + p.left - (p.done_round - lane.round))
        whole, kept = (
            sum(n + -n % 32 for n in lengths),
            sum(min(n, 100) for n in lengths),
        )
        used = whole * (1 - window_share) + kept * window_share
        assert replica.used == pytest.approx(used, abs=1e-6)
        assert replica.used <= 1600
    assert not replica.outstanding and replica.preemptions
    assert abs(replica.used) < 1e-6 and abs(replica.promised) < 1e-6


def test_pages_matter_where_they_are_full_alone() -> None:
    requests = poisson_workload(300, 500, 60, seed=1).at_rate(8)
    paged, plain = (
        [
            serve(requests, Pool(FULL, replace(LIMITS, cache_tokens=n, page=page)))
            for n in (100_000, 6400)
        ]
        for page in (64, 1)
    )
    assert replace(paged[0], cache_share=plain[0].cache_share) == plain[0]
    assert paged[0].cache_share > plain[0].cache_share
    # 560 tokens take 9 pages of 64, so that 11 sequences fit in 6400 tokens.
    assert paged[1].largest_batch == 6400 // 576 and plain[1].largest_batch == 12


def test_the_same_requests_give_the_same_service() -> None:
    requests = poisson_workload(300, 500, 60, seed=1).at_rate(8)
    pool = Pool(FULL, replace(LIMITS, cache_tokens=5000), 2)
    assert serve(requests, pool) == serve(requests, pool)


def test_replicas_share_the_load() -> None:
    requests = poisson_workload(400, 500, 60).at_rate(30)
    one, four = (serve(requests, Pool(FULL, LIMITS, n)) for n in (1, 4))
    assert four.ttft_s(99) < one.ttft_s(99)
    assert four.largest_batch < one.largest_batch


def test_a_pipeline_works_on_as_many_batches_as_it_has_stages() -> None:
    """Stages of a quarter of the time: four times the tokens, no token sooner."""
    requests = poisson_workload(512, 1, 200).at_rate(inf)
    limits = replace(LIMITS, max_sequences=256)
    whole = serve(requests, Pool(Linear(read=0.0), replace(limits, max_sequences=64)))
    times = Linear(read=0.0, stages=4)
    staged = serve(requests, Pool(times, replace(limits, lanes=4)))
    assert staged.tokens_per_s == pytest.approx(4 * whole.tokens_per_s, rel=0.05)
    assert staged.tpot_s(50) == pytest.approx(whole.tpot_s(50), rel=0.05)


def test_prefix_hits_are_not_read() -> None:
    request = TokenRequest(0.0, 100, 1, cached=60)
    found = serve([request], Pool(Linear(), LIMITS))
    assert found.ttft_s(50) == pytest.approx(0.01 + 40 * 1e-4)


def test_apart_first_tokens_do_not_wait_for_others_that_generate() -> None:
    requests = poisson_workload(300, 400, 100).at_rate(10)
    times = replace(FULL, read=1e-4)
    together = serve(requests, Pool(times, LIMITS, 2))
    apart = serve_disaggregated(
        requests, Pool(times, LIMITS), Pool(times, LIMITS), CacheTransfer(0.0, 0.0)
    )
    assert apart.generated == together.generated
    assert apart.ttft_s(50) < together.ttft_s(50)
    assert apart.tpot_s(99) < together.tpot_s(99)


def test_a_cache_is_sent_before_the_second_token() -> None:
    moved = CacheTransfer(0.5, 1e-3)
    found = serve_disaggregated(
        [TokenRequest(0.0, 100, 11)],
        Pool(Linear(), LIMITS),
        Pool(Linear(), LIMITS),
        moved,
    )
    assert found.ttft_s(50) == pytest.approx(0.02)
    assert found.tpot_s(50) == pytest.approx((0.5 + 0.1 + 10 * 0.01) / 10)


def test_generation_alone_counts_from_the_arrival_of_the_cache() -> None:
    found = serve_generation([TokenRequest(1.0, 100, 11)], Pool(Linear(), LIMITS))
    assert (found.ttft_s(50), found.tpot_s(50)) == (0, pytest.approx(0.01))


def test_a_request_that_is_longer_than_the_cache_is_refused() -> None:
    limits = replace(LIMITS, cache_tokens=100)
    with pytest.raises(DistIRError, match="101 tokens does not fit"):
        serve([TokenRequest(0.0, 100, 1)], Pool(Linear(), limits))
    assert serve([TokenRequest(0.0, 90, 10)], Pool(Linear(), limits)).cache_share == 1


def test_steps_at_once_are_steps_one_by_one() -> None:
    """A replica that may only take one step at a time ends when others do."""

    class OneByOne(Replica):
        def _rounds(self, lane: object, most: int, room: float) -> tuple[int, float]:
            return super()._rounds(lane, 1, room)  # pyright: ignore

    ends = list[float]()
    for kind in (Replica, OneByOne):
        replica, now = kind(FULL, LIMITS), 0.0
        for index in range(3):
            replica.push(index, TokenRequest(0.0, 50 + index, 40 + 7 * index))
        while True:
            end = replica.begin(replica.lanes[0], now, inf)
            if end is None:
                break
            now = end
            replica.finish(replica.lanes[0], now)
        ends.append(now)
    assert ends[0] == pytest.approx(ends[1], rel=1e-12)


def test_percentiles_are_values_that_occur() -> None:
    assert [percentile_of([1, 2, 3, 4], p) for p in (25, 50, 90, 99)] == [1, 2, 4, 4]
