"""A pipeline schedule as plain data: the order in which each rank takes its actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple


class Phase(Enum):
    """
    The kind of work that a stage does on a micro-batch. A backward pass is either one
    action (`B`) or two. Of the two, `I` computes the gradient of the stage's input, for
    which the previous stage waits; `W` computes the gradients of the stage's weights
    and can run later.
    """

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"

    # The enumeration's own hash uses the name and is the slowest part of a look-up.
    __hash__ = object.__hash__

    @property
    def ends_backward(self) -> bool:
        """
        Whether the backward pass of the micro-batch is complete after this phase, so
        that the stage's stored activations are no longer needed.
        """
        return self in (Phase.BACKWARD, Phase.BACKWARD_WEIGHT)


class Action(NamedTuple):
    """
    One phase of one stage on one micro-batch. `0F1` is the forward pass of stage 0 on
    micro-batch 1.
    """

    stage: int
    phase: Phase
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.phase.value}{self.micro_batch}"


@dataclass(frozen=True)
class PipelineSchedule:
    """
    The actions of each rank, in order. A rank starts its next action as soon as the
    action's inputs have arrived, so idle time follows from the order and is not stored.
    Stages and micro-batches count from 0 up to the largest numbers in the actions. Any
    lists of actions are accepted; `check_schedule` tells whether they form a valid
    schedule.
    """

    actions: tuple[tuple[Action, ...], ...]

    @staticmethod
    def of(actions: Sequence[Sequence[Action]]) -> PipelineSchedule:
        """Returns the schedule in which rank r has the actions `actions[r]`."""
        return PipelineSchedule(tuple(map(tuple, actions)))

    @property
    def ranks(self) -> int:
        """The number of ranks. Each rank runs one action at a time."""
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
        """Whether no stage has a backward pass, as in inference."""
        return all(a.phase is Phase.FORWARD for row in self.actions for a in row)

    @cached_property
    def stage_phases(self) -> tuple[tuple[int, Phase], ...]:
        """
        The pairs of a stage and a phase that occur in the schedule, in the order of
        stages.
        """
        found = {(a.stage, a.phase) for row in self.actions for a in row}
        return tuple(sorted(found, key=lambda each: (each[0], each[1].value)))

    @cached_property
    def _placement(self) -> dict[int, int]:
        return {a.stage: r for r, row in enumerate(self.actions) for a in row}

    def stage_rank(self, stage: int) -> int:
        """Returns the rank of the stage `stage`."""
        return self._placement[stage]
