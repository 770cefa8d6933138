"""Step times between simulated points."""

from __future__ import annotations

import pytest

from distir.serving.step_times import PiecewiseLinear, StepTable, StepTime, causal_pairs


def both(seconds: float) -> StepTime:
    return StepTime(seconds, seconds)


def test_a_curve_is_linear_between_points_and_goes_on_behind_them() -> None:
    curve = PiecewiseLinear([1, 3, 5], [10.0, 20.0, 40.0])
    assert [curve(x) for x in (0, 1, 2, 4, 5, 7)] == [10, 10, 15, 30, 40, 60]


def test_a_sum_over_a_curve_is_that_of_its_values() -> None:
    curve = PiecewiseLinear([2, 6, 11], [1.0, 5.0, 6.0])
    for start in (0.5, 3, 6, 20):
        expected = sum(curve(start + i) for i in range(9))
        assert curve.sum(start, 9) == pytest.approx(expected)


def test_causal_pairs_are_those_of_a_triangle() -> None:
    assert causal_pairs(0, 3) == 6
    assert causal_pairs(0, 2) + causal_pairs(2, 1) == causal_pairs(0, 3)


def table() -> StepTable:
    decode = [[both(1), both(3)], [both(2), both(6)]]
    read = [(10, both(5)), (20, both(10))]
    return StepTable([1, 11], [100, 300], decode, read, both(0.01))


def test_decoding_is_interpolated_in_batch_and_context() -> None:
    steps = table()
    assert steps.step(1, 100, 0, 0).latency_s == 1
    assert steps.step(6, 6 * 200, 0, 0).latency_s == pytest.approx(3)
    rounds = sum(steps.step(6, 1200 + 6 * i, 0, 0).latency_s for i in range(7))
    assert steps.rounds(6, 1200, 7) == pytest.approx(rounds)


def test_a_mixed_step_reads_as_many_tokens_and_the_caches() -> None:
    # 5 + 15 = 20 tokens take 10 s, 100 pairs 1 s, and the caches 2.8 - 1.4 = 1.4 s.
    found = table().step(5, 5 * 200, 15, 100).latency_s
    assert found == pytest.approx(10 + 1 + 1.4)
