"""
Makespans, bubbles and micro-batches in flight against closed forms: PP1 to PP4 (Narayanan
et al. 2021, section 2.2; Korthikanti et al. 2022, section 4.2.3), PP5 (stages of unequal
length) and ZB-H1's bubble (Qi et al. 2024).
"""

import pytest
from support.pipelines import UNEQUAL_STAGES

from distir.errors import DistIRError
from distir.pipelining import (
    Action,
    Phase,
    ScheduleTimeline,
    build_schedule,
    in_flight_per_rank,
    in_flight_per_stage,
    phase_durations,
    simulate_schedule,
)


def simulate(
    name: str,
    p: int,
    m: int,
    v: int | None = None,
    tf: float = 1,
    tb: float = 2,
    communication: float = 0,
) -> ScheduleTimeline:
    """A schedule whose stages all take tf and tb, per rank: a chunk a v-th of them."""
    schedule = build_schedule(name, p, m, v)
    share = schedule.stages // p
    durations = phase_durations(tf / share, tb / share / 2, tb / share / 2)
    return simulate_schedule(schedule, durations, communication)


PP1 = [
    (1, 4, 1, 2, 12, 0.0),
    (2, 2, 1, 2, 9, 0.5),
    (4, 8, 1, 2, 33, 0.375),
    (4, 4, 1, 1, 14, 0.75),
    (8, 32, 1, 2, 117, 0.21875),
    (16, 16, 3, 5, 248, 0.9375),
]


@pytest.mark.parametrize(("p", "m", "tf", "tb", "makespan", "bubble"), PP1)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_pp1_makespan(
    name: str, p: int, m: int, tf: float, tb: float, makespan: float, bubble: float
) -> None:
    """PP1: (m + p - 1) (tf + tb); bubble over work (p - 1) / m."""
    timeline = simulate(name, p, m, tf=tf, tb=tb)
    assert timeline.makespan == makespan == (m + p - 1) * (tf + tb)
    assert timeline.bubble_over_ideal == bubble
    assert timeline.bubble_fraction == pytest.approx((p - 1) / (m + p - 1))
    assert timeline.busy == (m * (tf + tb),) * p


@pytest.mark.parametrize(("p", "m"), [(p, m) for p, m, *_ in PP1] + [(4, 2), (8, 1)])
def test_pp2_in_flight(p: int, m: int) -> None:
    """PP2: 1F1B keeps min(m, p - s) micro-batches at stage s, GPipe m everywhere."""
    one = build_schedule("1f1b", p, m)
    assert in_flight_per_stage(one) == [min(m, p - s) for s in range(p)]
    assert in_flight_per_rank(one) == in_flight_per_stage(one)
    assert in_flight_per_stage(build_schedule("gpipe", p, m)) == [m] * p
    assert in_flight_per_stage(build_schedule("forward", p, m)) == [1] * p


@pytest.mark.parametrize(
    ("p", "m", "v", "tf", "tb", "makespan", "bubble"),
    [
        (4, 8, 2, 1, 2, 28.5, 0.1875),
        (8, 64, 3, 1, 2, 199.0, 0.036458333333333336),
        pytest.param(
            *(35, 280, 3, 1, 2, 874.0, 0.04047619047619048), marks=pytest.mark.slow
        ),
        (16, 32, 8, 2, 4, 203.25, 0.05859375),
    ],
)
def test_pp3_interleaved(
    p: int, m: int, v: int, tf: float, tb: float, makespan: float, bubble: float
) -> None:
    """PP3: m (tf + tb) + (p - 1) (tf + tb) / v."""
    timeline = simulate("interleaved-1f1b", p, m, v, tf, tb)
    assert timeline.makespan == pytest.approx(makespan, rel=1e-12)
    assert timeline.bubble_over_ideal == pytest.approx(bubble, rel=1e-9)


@pytest.mark.parametrize("p", [2, 3, 4, 7])
@pytest.mark.parametrize("extra", [0, 1, 2, 5, 9])
@pytest.mark.parametrize("v", [2, 3])
def test_interleaved_bubble_for_any_number(p: int, extra: int, v: int) -> None:
    """
    From p micro-batches on the bubble of PP3 also holds where p does not divide them:
    rounds of unequal length have none of the extra bubble of incomplete rounds.
    """
    timeline = simulate("interleaved-1f1b", p, p + extra, v, tf=v, tb=2 * v)
    assert timeline.makespan == 3 * v * (p + extra) + 3 * (p - 1)


@pytest.mark.parametrize(
    ("p", "v", "factor"),
    [(8, 3, 1.2916666666666667), (35, 3, 1.3238095238095238), (4, 8, 1.09375)],
)
def test_pp4_interleaved_in_flight(p: int, v: int, factor: float) -> None:
    """
    PP4: rank r keeps 2 (p - 1 - r) + (v - 1) p + 1 micro-batches of single stages; on rank
    0 these are 1 + (p - 1) / (p v) times its p v stages' worth.
    """
    in_flight = in_flight_per_rank(build_schedule("interleaved-1f1b", p, 2 * p, v))
    assert in_flight == [2 * (p - 1 - r) + (v - 1) * p + 1 for r in range(p)]
    assert in_flight[0] / (p * v) == factor


@pytest.mark.parametrize(("tf", "tb", "m", "gpipe", "f1b", "bound"), UNEQUAL_STAGES)
def test_pp5_unequal_stages(
    tf: list[int], tb: list[int], m: int, gpipe: float, f1b: float, bound: float
) -> None:
    """PP5: sum(tf) + (m - 1) max(tf) + sum(tb) + (m - 1) max(tb) for GPipe."""

    def durations(action: Action) -> float:
        return (tf if action.phase is Phase.FORWARD else tb)[action.stage]

    def makespan(name: str) -> float:
        schedule = build_schedule(name, len(tf), m)
        return simulate_schedule(schedule, durations).makespan

    assert makespan("gpipe") == gpipe
    assert gpipe == sum(tf) + (m - 1) * max(tf) + sum(tb) + (m - 1) * max(tb)
    assert makespan("1f1b") == f1b >= bound


def test_pp5_inference() -> None:
    times = [1, 3, 2]
    schedule = build_schedule("forward", 3, 5)
    assert simulate_schedule(schedule, lambda a: times[a.stage]).makespan == 18


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("extra", [0, 1, 4])
def test_zb_h1_has_a_third_of_the_bubble(p: int, extra: int) -> None:
    """With F = I = W = 1 a backward takes 2: 3 (p - 1) idle steps become p - 1."""
    m = p + extra
    one = simulate("1f1b", p, m)
    zero = simulate("zb-h1", p, m)
    assert one.busy == zero.busy == (3 * m,) * p
    assert one.makespan == 3 * m + 3 * (p - 1)
    assert zero.makespan == 3 * m + (p - 1)
    assert in_flight_per_rank(zero.schedule) == [p] * p


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("name", ["interleaved-zero-bubble", "zbv", "dualpipev"])
def test_zero_bubbles_of_two_chunks(name: str, p: int) -> None:
    """The bubble is p - 1 steps of half a rank's layers: a sixth of 1F1B's."""
    timeline = simulate(name, p, 3 * p, tf=2, tb=4)
    assert timeline.makespan == 6 * 3 * p + (p - 1)
    kept = {"zbv": 2 * p, "dualpipev": 2 * p + 1, "interleaved-zero-bubble": 2 * p}
    assert max(in_flight_per_rank(timeline.schedule)) == kept[name]


@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_whole_backwards_in_a_v(p: int) -> None:
    """No weight gradients fill the bubble, and as many activations are kept."""
    timeline = simulate("dualpipev-whole", p, 3 * p, tf=2, tb=4)
    assert timeline.makespan == 6 * 3 * p + (4 * p - 5)
    assert in_flight_per_rank(timeline.schedule) == [2 * p + 1] * p
    phases = {a.phase for row in timeline.schedule.actions for a in row}
    assert phases == {Phase.FORWARD, Phase.BACKWARD}


def test_communication_delays_other_ranks() -> None:
    """
    One micro-batch passes p - 1 links each way; stages on the same rank, such as the two
    at the bottom of a V, need none.
    """
    assert simulate("1f1b", 4, 1, communication=10).makespan == 4 * 3 + 6 * 10
    assert simulate("zbv", 1, 1, tf=2, tb=4, communication=10).makespan == 6
    # 4 forwards, 4 gradients of inputs; stage 2's weights before stage 1's backward, stage
    # 0's at the end; links between stages 0 and 1, and 2 and 3, each way.
    timeline = simulate("zbv", 2, 1, tf=2, tb=4, communication=10)
    assert timeline.makespan == 4 + 4 + 2 + 4 * 10


def test_no_work_has_no_bubble() -> None:
    timeline = simulate("1f1b", 2, 2, tf=0, tb=0)
    assert (timeline.bubble_over_ideal, timeline.bubble_fraction) == (0, 0)


@pytest.mark.parametrize("forward", [-1, float("nan"), float("inf")])
def test_bad_duration(forward: float) -> None:
    with pytest.raises(
        DistIRError, match=r"schedule: 0F0 takes .*: give it a time of 0"
    ):
        simulate("1f1b", 1, 1, tf=forward)
