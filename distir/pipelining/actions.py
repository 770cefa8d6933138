"""A pipeline schedule as plain data: the order in which each rank takes its actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property


class Phase(Enum):
    """
    The work of a stage on a micro-batch. A backward is either whole (`B`), or split
    into the part that the previous stage waits for (`I`, the gradient of the stage's
    input) and the part that can wait (`W`, the gradients of its weights).
    """

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"

    # The enumeration's own hash uses the name and is the slowest part of a look-up.
    __hash__ = object.__hash__

    @property
    def ends_backward(self) -> bool:
        """Whether nothing that the forward kept is needed after this phase."""
        return self in (Phase.BACKWARD, Phase.BACKWARD_WEIGHT)


@dataclass(frozen=True, slots=True)
class Action:
    """
    One phase of one stage on one micro-batch; `0F1` is stage 0's forward of micro-batch 1.
    """

    stage: int
    phase: Phase
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.phase.value}{self.micro_batch}"


@dataclass(frozen=True)
class PipelineSchedule:
    """
    The actions of each rank, in order. A rank takes its next action as soon as what the
    action needs has arrived; idle time follows from the order and is not stored. Stages and
    micro-batches count from 0, and there are as many as the actions name. Any lists are
    accepted: `check_schedule` says whether they make a schedule.
    """

    actions: tuple[tuple[Action, ...], ...]

    @staticmethod
    def of(actions: Sequence[Sequence[Action]]) -> PipelineSchedule:
        """Returns the schedule with these actions on each rank."""
        return PipelineSchedule(tuple(map(tuple, actions)))

    @property
    def ranks(self) -> int:
        """The number of ranks; each takes one action at a time."""
        return len(self.actions)

    @cached_property
    def stages(self) -> int:
        """The number of stages."""
        return 1 + max((a.stage for row in self.actions for a in row), default=-1)

    @cached_property
    def micro_batches(self) -> int:
        """The number of micro-batches."""
        return 1 + max((a.micro_batch for row in self.actions for a in row), default=-1)

    @cached_property
    def forward_only(self) -> bool:
        """Whether no stage has a backward, as in inference."""
        return all(a.phase is Phase.FORWARD for row in self.actions for a in row)

    @cached_property
    def stage_phases(self) -> tuple[tuple[int, Phase], ...]:
        """The phases that each stage goes through, in the order of stages."""
        found = {(a.stage, a.phase) for row in self.actions for a in row}
        return tuple(sorted(found, key=lambda each: (each[0], each[1].value)))

    @cached_property
    def _placement(self) -> dict[int, int]:
        return {a.stage: r for r, row in enumerate(self.actions) for a in row}

    def stage_rank(self, stage: int) -> int:
        """Returns the rank that a stage is on."""
        return self._placement[stage]
