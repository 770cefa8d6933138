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
    Applies a schedule, a `transform.named_sequence` of ops of the `schedule` dialect in the
    module, and removes all schedules. Run it on a sequential program, before
    `differentiate`. Requests of the schedule hold in `distribute` and in all searches.

    - `entry`: the name of the named sequence;
    - `set`: values of knobs, each `NAME=VALUE`.
    """

    name = "apply-schedule"

    entry: str = "schedule"
    set: tuple[str, ...] = ()

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        apply_schedule(op, self.entry, self.set)
