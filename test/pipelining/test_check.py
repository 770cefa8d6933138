"""Lists of actions that are no schedule, and what is said about them."""

import pytest

from distir.errors import DistIRError
from distir.pipelining import (
    Action,
    Phase,
    PipelineSchedule,
    build_schedule,
    check_schedule,
    dependencies,
    global_order,
    simulate_schedule,
)


def schedule(*rows: str) -> PipelineSchedule:
    """A schedule from actions of one-digit numbers."""
    return PipelineSchedule.of(
        [
            [Action(int(a[0]), Phase(a[1]), int(a[2])) for a in row.split()]
            for row in rows
        ]
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "it has no ranks"),
        (["0F0 0B0", ""], "rank 1 has no actions"),
        (["0F0 0B0 0F0"], "rank 0 has 0F0 twice"),
        (["0F0 0B0", "0F1 0B1"], "0F1 on rank 1, but stage 0 is on rank 0"),
        (["0F0 0B0 2F0 2B0"], "it names stage 2, but no stage 1"),
        (["0F1 0B1"], "it names micro-batch 1, but no micro-batch 0"),
        (
            ["0F0 0F1 0B0 0B1", "1F0 1B0 1B1"],
            "stage 1 has no forward of micro-batch 1: add 1F1 to rank 1",
        ),
        (
            ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1"],
            "stage 1 has no backward of micro-batch 1: add 1B1, or 1I1 and 1W1, to rank 1",
        ),
        (["0F0 0B0 0W0"], "stage 0 has both 0B0 and 0W0 for micro-batch 0"),
        (["0F0 0B0 0I0 0W0"], "stage 0 has both 0B0 and 0I0"),
        (["0F0 0I0"], "stage 0 has 0I0, but no gradients of weights .* add 0W0 after"),
        (["0F0 0W0"], "stage 0 has 0W0, but no gradient of its input .* add 0I0"),
        (
            ["0F0 0W0 0I0"],
            "rank 0 waits at 0W0 for 0I0, which comes later on the same rank",
        ),
        (["0B0 0F0"], "rank 0 waits at 0B0 for 0F0, which comes later"),
        (
            ["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"],
            "it would deadlock: rank 0 waits at 0B0 for 1B0; "
            "rank 1 waits at 1F1 for 0F1. Put",
        ),
        (  # Rank 0 only waits for the circle of the others.
            ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", "2F0 2F1 2B0 2B1"],
            "deadlock: rank 1 waits at 1B0 for 2B0; rank 2 waits at 2F1 for 1F1. Put",
        ),
    ],
)
def test_rejected(rows: list[str], message: str) -> None:
    with pytest.raises(DistIRError, match=message):
        check_schedule(schedule(*rows))


def test_negative_number() -> None:
    bad = PipelineSchedule.of([[Action(s, Phase.FORWARD, 0) for s in (-1, 0)]])
    with pytest.raises(DistIRError, match="it names stage -1"):
        check_schedule(bad)


def test_all_uses_check() -> None:
    """What runs a schedule rejects a bad one just so."""
    bad = schedule("0F0 0B0", "1F0")
    for use in (global_order, lambda s: simulate_schedule(s, lambda _: 1.0)):
        with pytest.raises(DistIRError, match="stage 1 has no backward"):
            use(bad)


def test_inference_has_no_backward() -> None:
    check_schedule(schedule("0F0 0F1", "1F0 1F1"))


def test_skip_connection() -> None:
    """
    With edges, an action waits for all stages that send to it, and for no others: stage 2
    takes from stages 0 and 1, which do not know of each other.
    """
    towers = schedule("0F0 0B0", "1F0 1I0 1W0", "2F0 2B0")
    needs = dependencies(towers, [(0, 2), (1, 2)])
    text = {str(a): " ".join(map(str, after)) for a, after in needs.items()}
    assert text == {
        "0F0": "",
        "0B0": "0F0 2B0",
        "1F0": "",
        "1I0": "1F0 2B0",
        "1W0": "1I0",
        "2F0": "0F0 1F0",
        "2B0": "2F0",
    }
    start = simulate_schedule(towers, lambda _: 1.0, edges=[(0, 2), (1, 2)]).start
    assert start[Action(1, Phase.FORWARD, 0)] == 0


def test_skip_connection_deadlock() -> None:
    """What the chain allows, an edge against it does not."""
    check_schedule(build_schedule("1f1b", 2, 2))
    with pytest.raises(DistIRError, match="rank 0 waits at 0F0 for 1F0"):
        check_schedule(build_schedule("1f1b", 2, 2), [(0, 1), (1, 0)])


def test_edge_of_unknown_stage() -> None:
    with pytest.raises(DistIRError, match=r"from stage 1 to stage 2, but .* 0 to 1"):
        check_schedule(build_schedule("gpipe", 2, 2), [(0, 1), (1, 2)])
