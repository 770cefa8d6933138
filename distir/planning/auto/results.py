"""What `auto-parallel` says about the plan that it chose, or why there is none."""

from __future__ import annotations

import re
from math import inf

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.interpreters.simulator import MemoryReport, Simulation, simulate
from distir.planning.annotations import add_notes
from distir.planning.auto.auto import AutoSearch
from distir.planning.grid.evaluate import Evaluator, Outcome, distribute_as
from distir.planning.grid.results import nothing_fits, ranked
from distir.planning.programs import Programs

_LARGEST = 4


def emit(context: Context, module: ModuleOp, search: AutoSearch) -> Simulation:
    """
    Makes of a sequential program the best plan that a search found, verified, with a note
    of what was chosen, and simulates it. Raises DistIRError.
    """
    best = search.best
    assert best is not None
    distribute_as(context, module, best, search.programs.requests)
    add_notes(module, [chosen_plan(search)])
    return simulate(module, profiles=search.programs.profiles)


def chosen_plan(search: AutoSearch) -> str:
    """What was chosen, from what, and how good it is at least."""
    best, outcomes = search.best, list(search.outcomes.values())
    assert best is not None
    bounds = search.bounds[best.configuration.batch]
    fitting = sum(o.fits for o in outcomes)
    text = (
        f"auto-parallel chose {best.configuration}, the fastest of {fitting} that fit of "
        f"{len(outcomes)} plans judged by simulation: {best.step_time_s:.4g} s a step, "
        f"{best.throughput_samples_per_s:.4g} samples/s, "
        f"{best.peak_memory_bytes / 1e9:.4g} GB on a device"
    )
    if search.pruned:
        text += f"; bounds ruled out {search.pruned} more"
    if best.bound_s:
        text += f"; no layouts of that mesh take less than {best.bound_s:.4g} s"
    if search.gap is not None:
        text += (
            f"; no plan for this batch takes less than {bounds.seconds:.4g} s, its "
            f"operations at the peak of {bounds.devices} device{'s' * (bounds.devices > 1)}"
        )
    if search.interrupted:
        text += "; the search was interrupted"
    elif not search.finished:
        text += "; the time was over before all plans were judged"
    return text


def memory_binds(search: AutoSearch) -> str:
    """
    Which plan would be faster than the best if there were more memory, or for which plans
    memory decided on the layouts; "" for none.
    """
    best = search.best
    assert best is not None
    large = [
        o
        for o in search.outcomes.values()
        if o.is_legal
        and not o.fits
        and o.throughput_samples_per_s > best.throughput_samples_per_s
    ]
    if not large:
        decided = [
            o for o in search.outcomes.values() if o.layouts and o.layouts.limited
        ]
        if best in decided:
            return (
                "memory binds: it decided on the layouts of the best plan, and with more "
                "there are faster ones"
            )
        if decided:
            return (
                f"memory may bind: it decided on the layouts of {len(decided)} other "
                f"plan{'s' * (len(decided) > 1)}, which would be faster with more"
            )
        return ""
    other = max(large, key=lambda o: o.throughput_samples_per_s)
    gain = other.throughput_samples_per_s / best.throughput_samples_per_s - 1
    return (
        f"memory binds: {other.configuration} would be {100 * gain:.3g} % faster, but needs "
        f"{other.peak_memory_bytes / 1e9:.4g} GB of {other.memory_bytes / 1e9:.4g} GB"
    )


def runner_up(search: AutoSearch) -> Outcome | None:
    """The fastest plan that divides the program in another way than the best."""
    best, *others = ranked(search.outcomes.values())

    def division(outcome: Outcome) -> object:
        c = outcome.configuration
        return c.axes, c.d, c.t, c.p, c.zero

    same = (best.step_time_s, best.peak_memory_bytes)
    for other in others:
        if division(other) != division(best) and same != (
            other.step_time_s,
            other.peak_memory_bytes,
        ):
            return other
    return None


def nothing_found(search: AutoSearch) -> str:
    """Why no plan fits: the smallest memory that was found, and what takes the most of it."""
    outcomes = sorted(search.outcomes.values(), key=lambda o: o.configuration)
    if not outcomes:
        return "the search was interrupted before any plan was judged"
    text = nothing_fits(outcomes)
    if search.interrupted:
        text = f"the search was interrupted; so far {text}"
    elif not search.finished:
        text = f"the time was over before all plans were judged; so far {text}"
    legal = [o for o in outcomes if o.is_legal]
    if legal:
        least = min(legal, key=lambda o: (o.peak_memory_bytes, o.configuration))
        text += f". Most is taken by {_largest(search.programs, least)}"
    searched = [o for o in outcomes if o.configuration.axes and o.error]
    if searched and legal:
        other = min(searched, key=lambda o: _would_do(o.error))
        peak = min(o.peak_memory_bytes for o in legal)
        what = "Less will do for" if _would_do(other.error) < peak else "As for"
        text += f". {what} {other.configuration}: {other.error}"
    return text


def _would_do(error: str) -> float:
    """The bytes that an error says would do; infinite if it does not say."""
    found = re.search(r"(\S+) bytes would do", error)
    return float(found[1]) if found else inf


def _largest(programs: Programs, outcome: Outcome) -> str:
    """The largest contributors to the peak of a plan."""
    module = Evaluator(programs).distributed(outcome.configuration, outcome.layouts)
    memory = MemoryReport.of(simulate(module, profiles=programs.profiles)).largest
    kinds = sorted(memory.by_kind.items(), key=lambda item: -item[1])
    scopes = [(scope or "the rest", size) for scope, size in memory.by_scope]
    shown = [
        ", ".join(
            f"{name} ({size / 1e9:.4g} GB)" for name, size in some[:_LARGEST] if size
        )
        for some in (kinds, scopes)
    ]
    return f"{shown[0]}; by module, {shown[1]}"
