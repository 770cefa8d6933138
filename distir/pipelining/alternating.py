"""
The schedules that alternate forwards and backwards: GPipe, 1F1B, interleaved 1F1B and their
zero-bubble forms, and the forward-only one.

With P ranks and v chunks, stage s is on rank s mod P. The schedules differ in how many
forwards come first and in when weight gradients follow.
"""

from __future__ import annotations

from collections.abc import Sequence

from distir.pipelining.actions import Action, Phase, PipelineSchedule

Work = tuple[int, int]
"""A stage and a micro-batch."""


def forward_only(ranks: int, micro_batches: int, chunks: int) -> PipelineSchedule:
    """
    The schedule of inference: forwards in the order of interleaved 1F1B, with P - 1 idle
    steps per rank.
    """
    return PipelineSchedule.of(
        [
            [
                Action(stage, Phase.FORWARD, batch)
                for stage, batch in _forwards(rank, ranks, micro_batches, chunks)
            ]
            for rank in range(ranks)
        ]
    )


def gpipe(ranks: int, micro_batches: int, chunks: int) -> PipelineSchedule:
    """
    GPipe (Huang et al. 2019): all forwards, then all backwards. The bubble over work is (P
    - 1) / K; each stage keeps all K micro-batches.
    """
    return _schedule(ranks, micro_batches, chunks, [micro_batches * chunks] * ranks)


def one_forward_one_backward(
    ranks: int, micro_batches: int, chunks: int
) -> PipelineSchedule:
    """
    1F1B (Narayanan et al. 2021, section 2.2.1): each backward runs as early as possible. It
    has GPipe's bubble, but stage s keeps at most P - s micro-batches.
    """
    warm_up = [ranks - 1 - rank for rank in range(ranks)]
    return _schedule(ranks, micro_batches, chunks, warm_up)


def interleaved_one_forward_one_backward(
    ranks: int, micro_batches: int, chunks: int
) -> PipelineSchedule:
    """
    1F1B with v stages per rank (Narayanan et al. 2021, section 2.2.2). The bubble over work
    is (P - 1) / (v K) for K >= P, a multiple of P or not. For multiples from 2 P on, rank r
    keeps 2 (P - 1 - r) + (v - 1) P + 1 micro-batches of single stages; other numbers keep
    more, as rounds are longer (`round_sizes`).
    """
    first_round = (chunks - 1) * round_sizes(ranks, micro_batches)[0]
    warm_up = [first_round + 2 * (ranks - 1 - rank) for rank in range(ranks)]
    return _schedule(ranks, micro_batches, chunks, warm_up)


def zero_bubble(ranks: int, micro_batches: int, chunks: int) -> PipelineSchedule:
    """
    ZB-H1 (Qi et al. 2024, section 3.1), and with v > 1 the same for interleaved stages:
    weight gradients follow later on higher ranks, where they fill the bubble. With one
    stage per rank and F, I and W equally long, the bubble over work is (P - 1) / (3 K), a
    third of 1F1B's, and no rank keeps more than P micro-batches, as many as the first rank
    of 1F1B.
    """
    first_round = (chunks - 1) * round_sizes(ranks, micro_batches)[0]
    warm_up = [first_round + ranks - 1 - rank for rank in range(ranks)]
    return _schedule(ranks, micro_batches, chunks, warm_up, list(range(ranks)))


def round_sizes(ranks: int, micro_batches: int) -> list[int]:
    """
    Returns how many micro-batches pass a rank's first stage in each round before its second
    stage takes them: at least P, so that the first of them has come round, and as even as
    possible.
    """
    rounds = max(1, micro_batches // ranks)
    size, larger = divmod(micro_batches, rounds)
    return [size + 1] * larger + [size] * (rounds - larger)


def _forwards(rank: int, ranks: int, micro_batches: int, chunks: int) -> list[Work]:
    """Returns the forwards of a rank: round after round, each through all of its stages."""
    stages = range(rank, chunks * ranks, ranks)
    return _rounds(stages, round_sizes(ranks, micro_batches))


def _backwards(rank: int, ranks: int, micro_batches: int, chunks: int) -> list[Work]:
    """
    Returns the backwards of a rank, in the order of the forwards but with the last stage
    first.
    """
    stages = range(rank, chunks * ranks, ranks)
    return _rounds(stages[::-1], round_sizes(ranks, micro_batches))


def _rounds(stages: Sequence[int], sizes: Sequence[int]) -> list[Work]:
    work: list[Work] = []
    first = 0
    for size in sizes:
        work += [(s, batch) for s in stages for batch in range(first, first + size)]
        first += size
    return work


def _schedule(
    ranks: int,
    micro_batches: int,
    chunks: int,
    warm_up: Sequence[int],
    weight_lag: Sequence[int] | None = None,
) -> PipelineSchedule:
    """
    Returns the schedule in which each rank does `warm_up[rank]` forwards, then forward and
    backward in turn, then the remaining backwards. With `weight_lag`, backwards are split,
    and weight gradients follow `weight_lag[rank]` backwards later.
    """
    return PipelineSchedule.of(
        [
            _alternate(
                _forwards(rank, ranks, micro_batches, chunks),
                _backwards(rank, ranks, micro_batches, chunks),
                warm_up[rank],
                None if weight_lag is None else weight_lag[rank],
            )
            for rank in range(ranks)
        ]
    )


def _alternate(
    forwards: list[Work], backwards: list[Work], warm_up: int, weight_lag: int | None
) -> list[Action]:
    """Returns the actions of one rank; see `_schedule`."""
    actions = [Action(s, Phase.FORWARD, batch) for s, batch in forwards[:warm_up]]
    for done, (stage, batch) in enumerate(backwards):
        if warm_up + done < len(forwards):
            next_stage, next_batch = forwards[warm_up + done]
            actions.append(Action(next_stage, Phase.FORWARD, next_batch))
        if weight_lag is None:
            actions.append(Action(stage, Phase.BACKWARD, batch))
            continue
        actions.append(Action(stage, Phase.BACKWARD_INPUT, batch))
        if done >= weight_lag:
            late_stage, late_batch = backwards[done - weight_lag]
            actions.append(Action(late_stage, Phase.BACKWARD_WEIGHT, late_batch))
    if weight_lag is not None:
        pending = backwards[max(0, len(backwards) - weight_lag) :]
        actions += [Action(s, Phase.BACKWARD_WEIGHT, batch) for s, batch in pending]
    return actions
