"""
Computes the makespan of a schedule, an order of its actions, and the number of
micro-batches whose activations are stored. The computation needs only the durations of
actions, not a program or a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import inf

from distir.errors import DistIRError
from distir.pipelining.actions import Action, Phase, PipelineSchedule
from distir.pipelining.check import check_complete
from distir.pipelining.dependencies import StageEdges, dependencies, ordered

Durations = Callable[[Action], float]
"""A function that returns the time of an action, in any unit."""


@dataclass(frozen=True)
class ScheduleTimeline:
    """The start and end times of each action of a schedule."""

    schedule: PipelineSchedule
    start: Mapping[Action, float]
    end: Mapping[Action, float]

    @cached_property
    def makespan(self) -> float:
        """The time at which the last action ends, in the unit of the durations."""
        return max(self.end.values())

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """The total time for which each rank works, in the unit of the durations."""
        return tuple(
            sum(self.end[action] - self.start[action] for action in row)
            for row in self.schedule.actions
        )

    @property
    def bubble_over_ideal(self) -> float:
        """
        The idle time of the busiest rank divided by the rank's work time. For 1F1B with
        p ranks and m micro-batches the ratio is (p - 1) / m. It is 0 if there is no
        work.
        """
        work = max(self.busy)
        return self.makespan / work - 1 if work else 0.0

    @property
    def bubble_fraction(self) -> float:
        """
        The idle time of all ranks as a fraction of the ranks' total time. It is 0 if
        the schedule takes no time.
        """
        time = self.schedule.ranks * self.makespan
        return 1 - sum(self.busy) / time if time else 0.0


def phase_durations(
    forward: float = 1, backward_input: float = 1, backward_weight: float = 1
) -> Durations:
    """
    Returns a function that maps each action to the duration of the action's phase. The
    durations are the same for all stages. A whole backward pass takes as long as its
    two parts together.
    """
    durations = {
        Phase.FORWARD: forward,
        Phase.BACKWARD: backward_input + backward_weight,
        Phase.BACKWARD_INPUT: backward_input,
        Phase.BACKWARD_WEIGHT: backward_weight,
    }
    return lambda action: durations[action.phase]


def simulate_schedule(
    schedule: PipelineSchedule,
    durations: Durations,
    communication: float = 0.0,
    edges: StageEdges | None = None,
) -> ScheduleTimeline:
    """
    Computes the start and end time of each action of a schedule. An action starts when
    its rank is free and its dependencies have ended. A result from another rank arrives
    `communication` later, in the unit of the durations; sends do not occupy a rank.
    `edges` lists the stages that send values, as pairs (sender, receiver); by default
    each stage sends to the next stage. Raises DistIRError for schedules that
    `check_schedule` rejects, and for negative or infinite durations.
    """
    check_complete(schedule)
    needs = dependencies(schedule, edges)
    free = [0.0] * schedule.ranks
    start: dict[Action, float] = {}
    end: dict[Action, float] = {}
    for action in ordered(schedule, needs):
        rank = schedule.stage_rank(action.stage)
        arrivals = (
            end[need]
            + (communication if schedule.stage_rank(need.stage) != rank else 0.0)
            for need in needs[action]
        )
        duration = durations(action)
        if not 0 <= duration < inf:
            raise DistIRError(
                f"schedule: {action} takes {duration}: give it a time of 0 or more"
            )
        start[action] = max(free[rank], *arrivals, 0.0)
        end[action] = free[rank] = start[action] + duration
    return ScheduleTimeline(schedule, start, end)


def in_flight_per_stage(schedule: PipelineSchedule) -> list[int]:
    """
    Returns, for each stage, the largest number of micro-batches that are in progress at
    the same time. A micro-batch is in progress from its forward pass to the end of its
    backward pass (`B` or `W`), or in inference to the end of its forward pass.
    """
    rows = [schedule.actions[schedule.stage_rank(s)] for s in range(schedule.stages)]
    return [
        _peak((a for a in row if a.stage == stage), schedule.forward_only)
        for stage, row in enumerate(rows)
    ]


def in_flight_per_rank(schedule: PipelineSchedule) -> list[int]:
    """
    Returns, for each rank, the largest number of pairs (stage, micro-batch) that are in
    progress at the same time. With v stages on a rank, each pair counts for one v-th of
    the rank's layers.
    """
    return [_peak(row, schedule.forward_only) for row in schedule.actions]


def _peak(actions: Iterable[Action], forward_only: bool) -> int:
    held = peak = 0
    for action in actions:
        held += action.phase is Phase.FORWARD
        peak = max(peak, held)
        held -= forward_only or action.phase.ends_backward
    return peak


def global_steps(
    schedule: PipelineSchedule, edges: StageEdges | None = None
) -> list[list[Action]]:
    """
    Returns the actions of all ranks in groups: the actions of a group start at the same
    time if every action takes equally long. Groups are ordered by time, and the actions
    of a group by rank. Raises DistIRError for schedules that `check_schedule` rejects.
    """
    start = simulate_schedule(schedule, lambda _: 1.0, edges=edges).start
    order = sorted(start, key=lambda a: (start[a], schedule.stage_rank(a.stage)))
    return [list(step) for _, step in groupby(order, key=lambda a: start[a])]


def global_order(
    schedule: PipelineSchedule, edges: StageEdges | None = None
) -> list[Action]:
    """
    Returns the actions of all ranks in one order, sorted by the time at which they
    start if every action takes equally long. The order respects every dependency and
    the order of each rank's own actions.
    """
    return [action for step in global_steps(schedule, edges) for action in step]
