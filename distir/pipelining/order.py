"""One order of all actions: the order of the ops of a distributed program."""

from __future__ import annotations

from distir.pipelining.actions import Action, Schedule
from distir.pipelining.dependencies import StageEdges
from distir.pipelining.simulation import simulate_schedule


def global_order(schedule: Schedule, edges: StageEdges | None = None) -> list[Action]:
    """
    The actions of all ranks in one order that keeps each rank's own and every dependency:
    by the time they start at when each takes as long as any other, ties by rank. Raises
    DistIRError for lists that `check_schedule` rejects.
    """
    start = simulate_schedule(schedule, lambda _: 1.0, edges=edges).start
    return sorted(start, key=lambda a: (start[a], schedule.stage_rank(a.stage)))
