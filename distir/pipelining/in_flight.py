"""The number of micro-batches whose activations a schedule keeps."""

from __future__ import annotations

from collections.abc import Iterable

from distir.pipelining.actions import Action, Phase, PipelineSchedule


def in_flight_per_stage(schedule: PipelineSchedule) -> list[int]:
    """
    Returns the most micro-batches that each stage has begun and not ended at any time. A
    micro-batch ends with `B` or `W`, in inference with the forward.
    """
    rows = [schedule.actions[schedule.stage_rank(s)] for s in range(schedule.stages)]
    return [
        _peak((a for a in row if a.stage == stage), schedule.forward_only)
        for stage, row in enumerate(rows)
    ]


def in_flight_per_rank(schedule: PipelineSchedule) -> list[int]:
    """
    Returns the most pairs of a stage and a micro-batch that each rank has begun and not
    ended at any time: with v stages on a rank, each counts for one v-th of the rank's
    layers.
    """
    return [_peak(row, schedule.forward_only) for row in schedule.actions]


def _peak(actions: Iterable[Action], forward_only: bool) -> int:
    held = peak = 0
    for action in actions:
        held += action.phase is Phase.FORWARD
        peak = max(peak, held)
        held -= forward_only or action.phase.ends_backward
    return peak
