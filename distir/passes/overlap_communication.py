"""`overlap-communication`: collectives and sends run while devices compute."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.interpreters.simulator import Simulation, simulate
from distir.passes.options import DistIRPass
from distir.planning.annotations import add_notes
from distir.program import reachable_functions, replace_program
from distir.transforms.overlap.hoist import hoist_gathers
from distir.transforms.overlap.place import place_functions
from distir.transforms.overlap.sink import sink_reductions


def _overlapped(
    module: ModuleOp, ahead: int, *, gathers: bool, hoist: bool
) -> ModuleOp:
    """A copy of a program in which communication overlaps computation."""
    copy = module.clone()
    sink_reductions(copy)
    if hoist:
        hoist_gathers(copy)
    place_functions(reachable_functions(copy), ahead, gathers=gathers)
    return copy


def _rank(result: Simulation, limit: int) -> tuple[bool, float, int]:
    """What makes a program better: it fits, is faster, needs less memory."""
    peak = max(result.peak_memory_bytes)
    return (not result.fits and peak > limit, result.step_time_s, peak)


@dataclass(frozen=True)
class OverlapCommunicationPass(DistIRPass):
    """
    Lets devices compute while they communicate. Run it on a distributed program, after
    `lower-reshard`.

    - Reductions (of gradients, data-parallel or ZeRO) start where their operand is computed,
      also in the function that computes it: its result is then on its way when the function
      returns. Optimizer updates come in the order in which gradients arrive.
    - Gatherings of parameters (ZeRO stage 3) start `ahead` uses of gathered parameters early;
      those in a layer's function move in front of its call, so that a layer's parameters
      arrive while the layer before is computed. Each use that they are ahead costs the memory of
      its parameters.
    - Sends leave both sides free.

    Nothing else changes, neither what is computed nor the order in which two devices name
    what is between them. The simulator judges: of this, of this without moving gatherings out
    of functions, and of reductions alone, the fastest that fits into memory is taken; the
    program stays as it is if none is faster. A note says what was gained and what memory it
    costs.
    """

    name = "overlap-communication"

    ahead: int = 1

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.ahead < 1:
            raise DistIRError(
                f"overlap-communication: parameters cannot be gathered ahead={self.ahead} "
                f"uses early; choose 1 or more"
            )
        before = simulate(op)
        limit = max(before.peak_memory_bytes)
        best, chosen, after = _rank(before, limit), None, before
        for gathers, hoist in ((True, True), (True, False), (False, False)):
            copy = _overlapped(op, self.ahead, gathers=gathers, hoist=hoist)
            result = simulate(copy)
            if (rank := _rank(result, limit))[:2] < best[:2] or (
                chosen is not None and rank < best
            ):
                best, chosen, after = rank, copy, result
        if chosen is None:
            add_notes(op, ["overlap-communication: nothing gained; left as it is"])
            return
        replace_program(op, chosen)
        add_notes(
            op,
            [
                f"overlap-communication: step time {after.step_time_s:.4g} s instead of "
                f"{before.step_time_s:.4g} s, peak memory "
                f"{max(after.peak_memory_bytes)} B instead of {limit} B"
            ],
        )
