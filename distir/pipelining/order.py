"""One order of the actions of all ranks: the order of the ops of a distributed program."""

from __future__ import annotations

from itertools import groupby

from distir.pipelining.actions import Action, PipelineSchedule
from distir.pipelining.dependencies import StageEdges
from distir.pipelining.simulation import simulate_schedule


def global_steps(
    schedule: PipelineSchedule, edges: StageEdges | None = None
) -> list[list[Action]]:
    """
    Returns the actions of all ranks in groups that start at the same time if all actions
    take equally long; groups are ordered by time, and actions in a group by rank. Raises
    DistIRError for lists that `check_schedule` rejects.
    """
    start = simulate_schedule(schedule, lambda _: 1.0, edges=edges).start
    order = sorted(start, key=lambda a: (start[a], schedule.stage_rank(a.stage)))
    return [list(step) for _, step in groupby(order, key=lambda a: start[a])]


def global_order(
    schedule: PipelineSchedule, edges: StageEdges | None = None
) -> list[Action]:
    """
    Returns the actions of all ranks in one order, that of `global_steps`, which keeps each
    rank's own order and every dependency.
    """
    return [action for step in global_steps(schedule, edges) for action in step]
