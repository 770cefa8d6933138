"""Requests: random arrivals that are the same for every rate, and traces."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from distir.errors import DistIRError
from distir.serving.requests import poisson_workload, read_trace


def test_arrivals_are_seeded_and_scale_with_the_rate() -> None:
    first = poisson_workload(50, 100, 10, seed=3)
    assert first == poisson_workload(50, 100, 10, seed=3)
    assert first != poisson_workload(50, 100, 10, seed=4)
    once, twice = first.at_rate(1.0), first.at_rate(2.0)
    assert [r.arrival_s for r in once] == [2 * r.arrival_s for r in twice]
    assert {r.arrival_s for r in first.at_rate(inf)} == {0.0}


def test_arrivals_have_the_mean_of_a_poisson_process() -> None:
    work = poisson_workload(20_000, 1, 1)
    assert work.requests[-1].arrival_s / 20_000 == pytest.approx(1, rel=0.02)


def test_a_prefix_cache_leaves_one_token_to_read() -> None:
    half = poisson_workload(1, 10, 1, prefix_hits=0.5).requests[0]
    whole = poisson_workload(1, 10, 1, prefix_hits=1.0).requests[0]
    assert (half.cached, whole.cached) == (5, 9)


def test_a_trace_is_sorted_and_scaled_to_one_request_a_second(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("arrival_s,prompt,generate\n3,7,2\n1,5,1\n2,6,4\n")
    work, rate = read_trace(path)
    assert rate == 1.0
    assert [r.prompt for r in work.requests] == [5, 6, 7]
    assert [r.arrival_s for r in work.at_rate(rate)] == [0, 1, 2]
    assert work.longest == 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "needs a first line arrival_s,prompt,generate"),
        ("time,prompt\n1,2\n", "needs a first line"),
        ("arrival_s,prompt,generate\n1,2\n", "line 2 of the trace"),
        ("arrival_s,prompt,generate\n1,2,0\n2,2,2\n", "line 2 of the trace"),
        ("arrival_s,prompt,generate\nnan,2,1\n", "line 2 of the trace"),
        ("arrival_s,prompt,generate\n1,2,3\n1,2,3\n", "arrive at the same second"),
    ],
)
def test_a_wrong_trace_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(text)
    with pytest.raises(DistIRError, match=message):
        read_trace(path)
