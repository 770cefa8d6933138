"""One order of all actions: the order of the ops of a distributed program."""

from __future__ import annotations

from itertools import groupby

from distir.pipelining.actions import Action, PipelineSchedule
from distir.pipelining.dependencies import StageEdges
from distir.pipelining.simulation import simulate_schedule


def global_steps(
    schedule: PipelineSchedule, edges: StageEdges | None = None
) -> list[list[Action]]:
    """
    The actions of all ranks, those together that start at the same time when each takes as
    long as any other; in the order of these times, and of ranks. Raises DistIRError for
    lists that `check_schedule` rejects.
    """
    start = simulate_schedule(schedule, lambda _: 1.0, edges=edges).start
    order = sorted(start, key=lambda a: (start[a], schedule.stage_rank(a.stage)))
    return [list(step) for _, step in groupby(order, key=lambda a: start[a])]


def global_order(
    schedule: PipelineSchedule, edges: StageEdges | None = None
) -> list[Action]:
    """
    The actions of all ranks in one order that keeps each rank's own and every dependency:
    that of `global_steps`.
    """
    return [action for step in global_steps(schedule, edges) for action in step]
