"""Schedules by name: what each accepts, and where its stages are."""

import pytest

from distir.errors import DistIRError
from distir.pipelining import (
    SCHEDULES,
    ScheduleKind,
    build_schedule,
    check_schedule,
    write_csv,
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gpipe", "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"),
        ("1f1b", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"),
        (
            "interleaved-1f1b",
            "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1\n",
        ),
        ("zb-h1", "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1\n"),
        ("forward", "0F0,0F1\n1F0,1F1\n"),
    ],
)
def test_two_ranks(name: str, text: str) -> None:
    """Each schedule for two ranks and two micro-batches."""
    assert write_csv(build_schedule(name, 2, 2)) == text


@pytest.mark.parametrize("name", SCHEDULES)
def test_stages_are_placed(name: str) -> None:
    """Stages go round the ranks, or down and up again in a V."""
    schedule = build_schedule(name, 3, 4)
    chunks = SCHEDULES[name].least_chunks
    assert (schedule.ranks, schedule.stages) == (3, 3 * chunks)
    assert schedule.micro_batches == 4
    is_v = name in ("zbv", "dualpipev", "dualpipev-whole")
    back = [2, 1, 0] if is_v else [0, 1, 2]
    assert [schedule.stage_rank(s) for s in range(schedule.stages)] == (
        [0, 1, 2, *back] if chunks == 2 else [0, 1, 2]
    )
    assert schedule.forward_only == (name == "forward")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pipedream", 2, 2), "none called 'pipedream': choose from gpipe, 1f1b, int"),
        (("1f1b", 0, 2), "schedule 1f1b: 0 ranks: it takes 1 or more"),
        (("1f1b", 2, 0), "schedule 1f1b: 0 micro-batches: it takes 1 or more"),
        (("1f1b", 2, 2, 2), r"1f1b: it has 1 chunk \(.*\), not 2: .* takes 2: interl"),
        (("interleaved-1f1b", 2, 2, 1), "it has 2 or more chunks .*, not 1: .*: gpipe"),
        (("zbv", 2, 2, 3), "it has 2 chunks .*, not 3: .*: interleaved-1f1b"),
        (("gpipe", 2, 2, 0), "it has 1 chunk .*, not 0: .*: none"),
    ],
)
def test_bad_arguments(arguments: tuple[str, int, int], message: str) -> None:
    with pytest.raises(DistIRError, match=message):
        build_schedule(*arguments)


def test_a_schedule_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry takes schedules from elsewhere."""
    monkeypatch.setitem(SCHEDULES, "mine", ScheduleKind(SCHEDULES["gpipe"].generate))
    schedule = build_schedule("mine", 2, 3)
    check_schedule(schedule)
    assert schedule == build_schedule("gpipe", 2, 3)
