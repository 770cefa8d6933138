"""The report of `auto-parallel`: the chosen plan, or the reason why there is none."""

from __future__ import annotations

import re
from math import inf

from xdsl.dialects.builtin import ModuleOp

from distir.interpreters.simulator import MemoryReport, Simulation, simulate
from distir.planning.annotations import add_notes
from distir.planning.auto.auto import AutoSearch
from distir.planning.grid.evaluate import Evaluator, distribute_as
from distir.planning.grid.results import nothing_fits, ranked
from distir.planning.plans.plan import LayoutPlan
from distir.planning.plans.plan_search import PlanSearch
from distir.planning.plans.programs import Programs
from distir.planning.plans.result import Impossible, Simulated, simulated

_LARGEST = 4


def emit(module: ModuleOp, search: AutoSearch) -> Simulation:
    """
    Distributes a sequential program in place by the best plan of a search, verifies it,
    and adds a note about the choice. Returns the simulation of the program. Raises
    DistIRError if the program is not correct.
    """
    best = search.best
    assert best is not None
    distribute_as(module, best, search.programs.requests)
    add_notes(module, [search.measured_note() or chosen_plan(search)])
    return simulate(module, profiles=search.programs.profiles)


def chosen_plan(search: AutoSearch) -> str:
    """
    Describes the chosen plan: its speed and memory, the number of plans it was chosen
    from, and the lower bounds that are known.
    """
    best, results = search.best, list(search.results.values())
    assert best is not None
    bounds = search.bounds[best.plan.batch]
    fitting = sum(result.fits for result in results)
    text = (
        f"auto-parallel chose {best.plan}, the fastest of {fitting} that fit of "
        f"{len(results)} plans judged by simulation: {best.step_time_s:.4g} s a step, "
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
    if search.is_running:
        text += "; this is the best so far, and the search goes on"
    elif search.interrupted:
        text += "; the search was interrupted"
    elif not search.finished:
        text += "; the time was over before all plans were judged"
    return text


def memory_binds(search: PlanSearch) -> str:
    """
    Tells whether the memory limit cost speed. Names the fastest plan that does not fit
    and would be faster than the best plan. If there is no such plan, tells whether
    memory decided the layouts of the best plan or of other plans. Returns an empty
    string if memory played no role.
    """
    best = search.best
    assert best is not None
    possible = simulated(search.results.values())
    large = [
        r
        for r in possible
        if not r.fits and r.throughput_samples_per_s > best.throughput_samples_per_s
    ]
    if not large:
        decided = [r for r in possible if r.layouts and r.layouts.limited]
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
        f"memory binds: {other.plan} would be {100 * gain:.3g} % faster, but needs "
        f"{other.needed_bytes / 1e9:.4g} GB of {other.memory_bytes / 1e9:.4g} GB"
    )


def runner_up(search: PlanSearch) -> Simulated | None:
    """
    Returns the fastest plan that divides the program among the devices in another way
    than the best plan, and whose time or memory is different. Returns None if there is
    none.
    """
    best, others = search.best, ranked(search.results.values())
    assert best is not None
    same = (best.step_time_s, best.peak_memory_bytes)
    for other in others:
        if other.plan.division != best.plan.division and same != (
            other.step_time_s,
            other.peak_memory_bytes,
        ):
            return other
    return None


def nothing_found(search: AutoSearch) -> str:
    """
    Explains why no plan was found. Names the smallest memory that any plan needs. If
    the search ended by itself, also names the values that take most of this memory.
    Finding them requires distributing the plan again, so they are left out after an
    interruption or a time limit.
    """
    results = sorted(search.results.values(), key=lambda r: r.plan)
    if not results:
        return "the search was interrupted before any plan was judged"
    text = nothing_fits(results)
    if search.interrupted:
        text = f"the search was interrupted; so far {text}"
    elif not search.finished:
        text = f"the time was over before all plans were judged; so far {text}"
    possible = simulated(results)
    if possible and search.finished:
        least = min(possible, key=lambda r: (r.needed_bytes, r.plan))
        text += f". Most is taken by {_largest(search.programs, least)}"
    searched = [
        r
        for r in results
        if isinstance(r, Impossible) and isinstance(r.plan, LayoutPlan)
    ]
    if searched and possible:
        other = min(searched, key=lambda r: _would_do(r.error))
        peak = min(r.needed_bytes for r in possible)
        what = "Less will do for" if _would_do(other.error) < peak else "As for"
        text += f". {what} {other.plan}: {other.error}"
    return text


def _would_do(error: str) -> float:
    """
    Returns the number of bytes of memory that would suffice according to the error
    message `error`, or infinity if the message names no number.
    """
    found = re.search(r"(\S+) bytes would do", error)
    return float(found[1]) if found else inf


def _largest(programs: Programs, result: Simulated) -> str:
    """
    Describes the values that take most of a plan's peak memory, by kind of value and by
    module of the model.
    """
    module = Evaluator(programs).distributed(result.plan, result.layouts)
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
