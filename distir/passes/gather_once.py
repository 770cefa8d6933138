"""`gather-once`: gathers parameters once for all micro-batches of a step."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.overlap.shared_gathers import gather_once


@dataclass(frozen=True)
class GatherOncePass(DistIRPass):
    """
    Gathers each parameter that is stored split over `axis` once in a step, in the first
    call that uses the parameter. This call also returns the whole parameter, and later
    calls take it as an argument. If the first call waits for a value from another
    pipeline stage, the gather comes in front of the call. ZeRO stages 1 and 2 gather in
    this way where parameters are stored split: the forward pass of the first micro-batch
    runs beside the gathers. Whole parameters stay in memory until their last use. Run
    the pass after `lower-reshard`.
    """

    name = "gather-once"

    axis: tuple[str, ...] = ("d",)

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        gather_once(op, self.axis)
