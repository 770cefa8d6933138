"""`apply-schedule`: applies a user's schedule to a program."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.scheduling.run import apply_schedule


@dataclass(frozen=True)
class ApplySchedulePass(DistIRPass):
    """
    Applies a schedule, and removes all schedules from the module. A schedule is a
    `transform.named_sequence` with ops of the `schedule` dialect. Run the pass on a
    sequential program, before `differentiate`. `distribute` and all searches obey the
    requests of the schedule.

    - `entry`: the name of the named sequence;
    - `set`: values for the knobs of the schedule, each `NAME=VALUE`.
    """

    name = "apply-schedule"

    entry: str = "schedule"
    set: tuple[str, ...] = ()

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        apply_schedule(op, self.entry, self.set)
