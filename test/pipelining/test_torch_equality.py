"""
Our action lists are those of `torch.distributed.pipelining.schedules`, which the tests build
from stages without modules, or run on stages that note what they are asked to compute.
Where PyTorch has no list, ours is valid, and no slower where there is one to compare with.
"""

import pytest
from support.torch_schedules import (
    SINGLE_STAGE,
    RecordingStage,
    as_schedule,
    multi_stage,
    run_single_stage,
)

from distir.pipelining import (
    Phase,
    build_schedule,
    check_schedule,
    phase_durations,
    simulate_schedule,
)

SINGLE = [(1, 1), (1, 4), (2, 2), (2, 5), (3, 3), (3, 7), (4, 4), (4, 8), (8, 11)]


@pytest.mark.parametrize(("ranks", "micro_batches"), SINGLE)
@pytest.mark.parametrize("name", SINGLE_STAGE)
def test_one_stage_per_rank(name: str, ranks: int, micro_batches: int) -> None:
    """GPipe, 1F1B and forward-only: what PyTorch computes, in its order."""
    ours = build_schedule(name, ranks, micro_batches)
    assert ours == run_single_stage(name, ranks, micro_batches)


@pytest.mark.parametrize(("ranks", "micro_batches"), SINGLE)
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_lists_that_pytorch_prints(name: str, ranks: int, micro_batches: int) -> None:
    """
    The lists that PyTorch keeps for GPipe and 1F1B, which it prints and never runs. Ours
    differs on purpose on the last rank of 1F1B, where PyTorch's begins with micro-batch 1
    and ends with micro-batch K; the test above shows that it runs 0 to K - 1, as ours.
    """
    printed = SINGLE_STAGE[name](RecordingStage(0, ranks), micro_batches).pipeline_order
    theirs = as_schedule(printed).actions
    ours = build_schedule(name, ranks, micro_batches).actions
    assert ours[:-1] == theirs[:-1]
    if name == "gpipe":
        assert ours[-1] == theirs[-1]
        return
    forwards = [a.micro_batch for a in theirs[-1] if a.phase is Phase.FORWARD]
    assert forwards == list(range(1, micro_batches + 1))
    assert [a.phase for a in ours[-1]] == [a.phase for a in theirs[-1]]


MULTI = [
    *(
        (name, ranks, micro_batches, chunks)
        for name in ("interleaved-1f1b", "interleaved-zero-bubble")
        for ranks, micro_batches, chunks in [
            (1, 3, 2),
            (2, 1, 2),
            (2, 4, 2),
            (2, 8, 3),
            (3, 2, 2),
            (3, 9, 4),
            (4, 3, 2),
            (4, 4, 2),
            (4, 10, 3),
            (4, 16, 2),
            (8, 16, 2),
        ]
    ),
    *(
        ("zbv", ranks, micro_batches, 2)
        for ranks, micro_batches in [
            (1, 1),
            (1, 4),
            (2, 1),
            (2, 3),
            (3, 4),
            (3, 11),
            (4, 8),
            (8, 20),
        ]
    ),
    *(
        ("dualpipev", ranks, micro_batches, 2)
        for ranks, micro_batches in [
            (1, 2),
            (2, 4),
            (2, 7),
            (3, 6),
            (3, 10),
            (4, 8),
            (5, 13),
            (8, 20),
        ]
    ),
]


@pytest.mark.parametrize(("name", "ranks", "micro_batches", "chunks"), MULTI)
def test_several_stages_per_rank(
    name: str, ranks: int, micro_batches: int, chunks: int
) -> None:
    """
    The lists of PyTorch's classes. DualPipeV's overlapped pairs of a forward and a backward
    stand one after the other in ours, as PyTorch runs them unless told otherwise.
    """
    theirs = as_schedule(multi_stage(name, ranks, micro_batches, chunks).pipeline_order)
    assert build_schedule(name, ranks, micro_batches, chunks) == theirs


@pytest.mark.parametrize(
    ("ranks", "micro_batches"),
    [(1, 1), (1, 4), (2, 1), (2, 8), (3, 3), (3, 9), (4, 3), (4, 10), (8, 3), (8, 16)],
)
def test_zb_h1_is_interleaved_zero_bubble_of_one_chunk(
    ranks: int, micro_batches: int
) -> None:
    """PyTorch has no class of its own for ZB-H1."""
    theirs = multi_stage("interleaved-zero-bubble", ranks, micro_batches, 1)
    ours = build_schedule("zb-h1", ranks, micro_batches)
    assert ours == as_schedule(theirs.pipeline_order)


@pytest.mark.parametrize(
    ("name", "ranks", "micro_batches", "chunks"),
    [
        ("interleaved-1f1b", 3, 7, 2),
        ("interleaved-1f1b", 4, 9, 3),
        ("interleaved-zero-bubble", 3, 7, 2),
        ("interleaved-zero-bubble", 4, 9, 3),
        ("dualpipev", 2, 3, 2),
        ("dualpipev", 4, 1, 2),
    ],
)
def test_micro_batches_that_pytorch_refuses(
    name: str, ranks: int, micro_batches: int, chunks: int
) -> None:
    """
    On purpose we also take numbers of micro-batches for which PyTorch has no list. Ours
    take no longer than PyTorch's for the next number that it takes.
    """
    with pytest.raises(ValueError, match=r"micro-?batches"):
        multi_stage(name, ranks, micro_batches, chunks)
    ours = build_schedule(name, ranks, micro_batches, chunks)
    check_schedule(ours)
    accepted = 2 * ranks if name == "dualpipev" else -(-micro_batches // ranks) * ranks
    theirs = as_schedule(multi_stage(name, ranks, accepted, chunks).pipeline_order)
    our_time, their_time = (
        simulate_schedule(schedule, phase_durations()).makespan
        for schedule in (ours, theirs)
    )
    assert our_time <= their_time


@pytest.mark.parametrize(("ranks", "micro_batches"), [(4, 1), (4, 3), (8, 5)])
def test_fewer_micro_batches_than_stages(ranks: int, micro_batches: int) -> None:
    """
    1F1B with K < P, on purpose: PyTorch refuses to build it. It is then as long as GPipe,
    which PyTorch does build.
    """
    with pytest.raises(ValueError, match="microbatches"):
        run_single_stage("1f1b", ranks, micro_batches)
    ours = simulate_schedule(
        build_schedule("1f1b", ranks, micro_batches), phase_durations()
    )
    gpipe = run_single_stage("gpipe", ranks, micro_batches)
    assert ours.makespan == simulate_schedule(gpipe, phase_durations()).makespan
