"""
Checks that lists of actions form a schedule: no action is missing or appears twice, and
nothing deadlocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import count

from distir.errors import DistIRError
from distir.pipelining.actions import Action, Phase, PipelineSchedule
from distir.pipelining.dependencies import StageEdges, executable_order


def check_schedule(schedule: PipelineSchedule, edges: StageEdges | None = None) -> None:
    """
    Raises DistIRError unless the schedule is complete and free of deadlocks. Every
    stage must be on one rank and have one forward pass and one backward pass of each
    micro-batch. All ranks must reach the end of their lists if each action waits for
    its `dependencies`. `edges` lists the stages that send values, as pairs (sender,
    receiver); by default each stage sends to the next stage.
    """
    check_complete(schedule)
    executable_order(schedule, edges)


def check_complete(schedule: PipelineSchedule) -> None:
    """
    Raises DistIRError unless the schedule is complete. Every rank must have actions,
    and every stage must be on one rank. Each stage needs one forward pass of each
    micro-batch and, except in inference, one backward pass: `B`, or `I` and `W`.
    """
    _check_ranks(schedule)
    _check_no_gaps("stage", (a.stage for row in schedule.actions for a in row))
    _check_no_gaps(
        "micro-batch", (a.micro_batch for row in schedule.actions for a in row)
    )
    phases: defaultdict[tuple[int, int], set[Phase]] = defaultdict(set)
    for row in schedule.actions:
        for stage, phase, micro_batch in row:
            phases[stage, micro_batch].add(phase)
    for stage in range(schedule.stages):
        for micro_batch in range(schedule.micro_batches):
            found = phases[stage, micro_batch]
            _check_micro_batch(schedule, found, stage, micro_batch)


def _check_ranks(schedule: PipelineSchedule) -> None:
    if not schedule.actions:
        raise DistIRError("schedule: it has no ranks: give each rank a list of actions")
    ranks: dict[int, int] = {}
    seen: set[Action] = set()
    for rank, row in enumerate(schedule.actions):
        if not row:
            raise DistIRError(
                f"schedule: rank {rank} has no actions: give it a stage, or leave it out"
            )
        for action in row:
            other = ranks.setdefault(action.stage, rank)
            if other != rank:
                raise DistIRError(
                    f"schedule: {action} on rank {rank}, but stage {action.stage} is on "
                    f"rank {other}: a stage's weights are on one rank, so put all of its "
                    "actions there"
                )
            if action in seen:
                raise DistIRError(
                    f"schedule: rank {rank} has {action} twice: keep one of them"
                )
            seen.add(action)


def _check_no_gaps(what: str, numbers: Iterable[int]) -> None:
    """
    Raises DistIRError if the stages or micro-batches `numbers` do not count from 0
    without gaps. `what` is the word for the numbers in the message.
    """
    present = set(numbers)
    first_missing = next(n for n in count() if n not in present)
    odd = min(present) if min(present) < 0 else max(present)
    if odd < 0 or odd > first_missing:
        raise DistIRError(
            f"schedule: it names {what} {odd}, but no {what} {first_missing}: "
            "number them from 0 without gaps, or add the missing actions"
        )


def _check_micro_batch(
    schedule: PipelineSchedule,
    phases: Collection[Phase],
    stage: int,
    micro_batch: int,
) -> None:
    """
    Raises DistIRError if `phases`, the phases of a stage on a micro-batch, are not `F`
    and `B`, or `F`, `I` and `W`. In inference, `F` alone is also allowed.
    """
    has_gradient = Phase.BACKWARD_INPUT in phases
    has_weights = Phase.BACKWARD_WEIGHT in phases
    if Phase.FORWARD in phases:
        if Phase.BACKWARD in phases:
            if not has_gradient and not has_weights:
                return
        elif (has_gradient and has_weights) or schedule.forward_only:
            return
    forward, whole, gradient, weights = (
        Action(stage, phase, micro_batch) for phase in Phase
    )
    rank = schedule.stage_rank(stage)

    def fail(problem: str, remedy: str) -> None:
        raise DistIRError(
            f"schedule: stage {stage} has {problem} micro-batch {micro_batch}: {remedy}"
        )

    if Phase.FORWARD not in phases:
        fail("no forward of", f"add {forward} to rank {rank}")
    if Phase.BACKWARD in phases:
        split = gradient if has_gradient else weights
        fail(
            f"both {whole} and {split} for", "keep the whole backward or the split one"
        )
    if not has_gradient and not has_weights:
        fail(
            "no backward of",
            f"add {whole}, or {gradient} and {weights}, to rank {rank}",
        )
    if not has_weights:
        fail(f"{gradient}, but no gradients of weights for", f"add {weights} after it")
    fail(f"{weights}, but no gradient of its input for", f"add {gradient} before it")
