"""
The schedules that alternate forward and backward passes: GPipe, 1F1B, interleaved 1F1B,
the zero-bubble forms of 1F1B, and the forward-only schedule.

With P ranks and v chunks (stages per rank), stage s is on rank s mod P. The schedules
differ in the number of forward passes before the first backward pass, and in the time
at which weight gradients are computed.
"""

from __future__ import annotations

from collections.abc import Sequence

from distir.pipelining.actions import Action, Phase, PipelineSchedule

Work = tuple[int, int]
"""A stage and a micro-batch."""


def forward_only(ranks: int, micro_batches: int, chunks: int) -> PipelineSchedule:
    """
    Returns the schedule of inference. Forward passes run in the order of interleaved
    1F1B. Each of the P ranks has P - 1 idle steps.
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
    Returns the GPipe schedule (Huang et al. 2019): all forward passes, then all
    backward passes. With P ranks and K micro-batches, idle time over work is (P - 1) /
    K. Each stage keeps the activations of all K micro-batches.
    """
    return _schedule(ranks, micro_batches, chunks, [micro_batches * chunks] * ranks)


def one_forward_one_backward(
    ranks: int, micro_batches: int, chunks: int
) -> PipelineSchedule:
    """
    Returns the 1F1B schedule (Narayanan et al. 2021, section 2.2.1): each backward pass
    runs as early as possible. With P ranks and K micro-batches, idle time over work is
    (P - 1) / K as in GPipe, but stage s keeps the activations of at most P - s
    micro-batches.
    """
    warm_up = [ranks - 1 - rank for rank in range(ranks)]
    return _schedule(ranks, micro_batches, chunks, warm_up)


def interleaved_one_forward_one_backward(
    ranks: int, micro_batches: int, chunks: int
) -> PipelineSchedule:
    """
    Returns the schedule of 1F1B with v stages per rank (Narayanan et al. 2021, section
    2.2.2).

    With P ranks and K >= P micro-batches, idle time over work is (P - 1) / (v K),
    whether or not K is a multiple of P. Memory is counted in activations of one stage
    for one micro-batch. If K is a multiple of P and at least 2 P, rank r stores 2 (P -
    1 - r) + (v - 1) P + 1 activations. For any other K the rank stores more, because
    rounds are longer (`round_sizes`).
    """
    first_round = (chunks - 1) * round_sizes(ranks, micro_batches)[0]
    warm_up = [first_round + 2 * (ranks - 1 - rank) for rank in range(ranks)]
    return _schedule(ranks, micro_batches, chunks, warm_up)


def zero_bubble(ranks: int, micro_batches: int, chunks: int) -> PipelineSchedule:
    """
    Returns the ZB-H1 schedule (Qi et al. 2024, section 3.1), or its interleaved form
    for several stages per rank. Weight gradients are computed later on higher ranks,
    where they fill idle time.

    With P ranks, K micro-batches, one stage per rank, and F, I and W of equal length,
    idle time over work is (P - 1) / (3 K), a third of the value for 1F1B. Each rank
    stores the activations of at most P micro-batches, as the first rank of 1F1B does.
    """
    first_round = (chunks - 1) * round_sizes(ranks, micro_batches)[0]
    warm_up = [first_round + ranks - 1 - rank for rank in range(ranks)]
    return _schedule(ranks, micro_batches, chunks, warm_up, list(range(ranks)))


def round_sizes(ranks: int, micro_batches: int) -> list[int]:
    """
    Returns the number of micro-batches in each round. All micro-batches of a round pass
    the first stage of a rank before one of them enters the rank's second stage. Rounds
    are as equal as possible. With at least as many micro-batches as ranks, each round
    has at least one micro-batch per rank, so that the round's first micro-batch has
    passed all ranks when the first rank is ready for its second stage.
    """
    rounds = max(1, micro_batches // ranks)
    size, larger = divmod(micro_batches, rounds)
    return [size + 1] * larger + [size] * (rounds - larger)


def _forwards(rank: int, ranks: int, micro_batches: int, chunks: int) -> list[Work]:
    """
    Returns the forward passes of a rank, round by round. Each round goes through all
    stages of the rank.
    """
    stages = range(rank, chunks * ranks, ranks)
    return _rounds(stages, round_sizes(ranks, micro_batches))


def _backwards(rank: int, ranks: int, micro_batches: int, chunks: int) -> list[Work]:
    """
    Returns the backward passes of a rank, round by round. Each round goes through all
    stages of the rank, beginning with the last stage.
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
    Returns the schedule in which each rank runs `warm_up[rank]` forward passes, then
    forward and backward passes in turn, then the remaining backward passes. With
    `weight_lag`, backward passes are split, and the weight gradients of a micro-batch
    are computed `weight_lag[rank]` backward passes later.
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
    """
    Returns the actions of one rank: `warm_up` forward passes, then forward and backward
    passes in turn, then the remaining backward passes. If `weight_lag` is given,
    backward passes are split, and the weight gradients of a micro-batch are computed
    `weight_lag` backward passes later.
    """
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
