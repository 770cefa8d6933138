"""Which communication overlaps computation: what the simulator finds the fastest."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.interpreters.simulator import Simulation, simulate
from distir.planning.annotations import add_notes
from distir.program import reachable_functions, replace_program
from distir.transforms.overlap.hoist import hoist_gathers
from distir.transforms.overlap.place import place_functions
from distir.transforms.overlap.sink import sink_reductions


def overlap_communication(
    module: ModuleOp, ahead: int = 1, before: Simulation | None = None
) -> Simulation:
    """
    Lets collectives and sends of a distributed program run while devices compute, where
    that is faster and fits into memory, and notes what was gained; gives the simulation of
    what it becomes. Parameters are gathered `ahead` uses early; `before` is the simulation
    of the program as it is, if that is known. Raises DistIRError.
    """
    if ahead < 1:
        raise DistIRError(
            f"overlap-communication: parameters cannot be gathered ahead={ahead} "
            f"uses early; choose 1 or more"
        )
    before = before or simulate(module)
    limit = max(before.peak_memory_bytes)
    best, chosen, after = _rank(before, limit), None, before
    for gathers, hoist in ((True, True), (True, False), (False, False)):
        copy = _overlapped(module, ahead, gathers=gathers, hoist=hoist)
        if copy is None:
            continue
        result = simulate(copy)
        if (rank := _rank(result, limit))[:2] < best[:2] or (
            chosen is not None and rank < best
        ):
            best, chosen, after = rank, copy, result
    if chosen is None:
        add_notes(module, ["overlap-communication: nothing gained; left as it is"])
        return before
    replace_program(module, chosen)
    add_notes(
        module,
        [
            f"overlap-communication: step time {after.step_time_s:.4g} s instead of "
            f"{before.step_time_s:.4g} s, peak memory "
            f"{max(after.peak_memory_bytes)} B instead of {limit} B"
        ],
    )
    return after


def _overlapped(
    module: ModuleOp, ahead: int, *, gathers: bool, hoist: bool
) -> ModuleOp | None:
    """
    A copy of a program in which communication overlaps computation; None if gatherings are
    to be hoisted, and there are none.
    """
    copy = module.clone()
    sink_reductions(copy)
    if hoist and not hoist_gathers(copy):
        return None
    place_functions(reachable_functions(copy), ahead, gathers=gathers)
    return copy


def _rank(result: Simulation, limit: int) -> tuple[bool, float, int]:
    """What makes a program better: it fits, is faster, needs less memory."""
    peak = max(result.peak_memory_bytes)
    return (not result.fits and peak > limit, result.step_time_s, peak)
