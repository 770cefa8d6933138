"""The leading plans of `auto-parallel`: the plans whose neighbours are judged next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distir.planning.grid.results import ranked
from distir.planning.plans.plan import GridPlan, LayoutPlan, Plan
from distir.planning.plans.result import Result, Simulated, simulated

_FAR = 1.3
"""
The neighbours of a plan that fits are judged only if its step takes at most this many
times as long as that of the best plan without refinements.
"""


def offloads(plan: Plan) -> bool:
    """Whether a plan keeps the optimizer states in the host's memory."""
    return isinstance(plan, GridPlan) and plan.offload_states


def refinements(plan: Plan) -> int:
    """
    Returns the number of refinements that a plan has: overlap, searched stages, and a
    pipeline with optimizer states in the host's memory. Each refinement makes judging
    the plan take several times as long.
    """
    pipelined = plan.is_pipelined and offloads(plan)
    return plan.overlap + bool(plan.stages) + pipelined


def sorted_results(
    results: Iterable[Result], *, refined: bool
) -> tuple[list[Simulated], list[Simulated]]:
    """
    Returns two lists of results, both sorted by speed, fastest first. The first list
    holds the results that fit into memory. The second list holds the results that do
    not fit but are faster than all that fit. If nothing fits, the second list holds all
    results, sorted by memory, least first. Plans with refinements are left out unless
    `refined`.
    """
    known = simulated(results)
    if not refined:
        known = [r for r in known if not refinements(r.plan)]
    fitting = ranked(known)
    large = [r for r in known if not r.fits]
    if not fitting:
        return [], sorted(large, key=lambda o: o.peak_memory_bytes)
    fastest = fitting[0].throughput_samples_per_s
    large = [o for o in large if o.throughput_samples_per_s > fastest]
    return fitting, sorted(large, key=lambda o: -o.throughput_samples_per_s)


def leaders(results: Iterable[Result], width: int, *, refined: bool) -> list[Simulated]:
    """
    Returns the results whose neighbours are judged next. Of each kind of plan, these
    are at most `width` results that fit and `width` results that do not fit but would
    be faster. A result that fits is left out if it is far slower than the best result
    without refinements. Plans with refinements are left out unless `refined`.
    """
    fitting, large = sorted_results(results, refined=refined)
    plain = [r.throughput_samples_per_s for r in fitting if not refinements(r.plan)]
    least = max(plain, default=0.0) / _FAR
    near = [r for r in fitting if r.throughput_samples_per_s >= least]
    return [*_first_of_kinds(near, width), *_first_of_kinds(large, width)]


def _first_of_kinds(results: Sequence[Simulated], width: int) -> list[Simulated]:
    """
    Returns the first `width` results of each kind of plan. The kind of a plan says
    whether its layouts are searched and whether it has several pipeline ranks. Of
    results with equal time and memory, only the first is kept.
    """
    distinct: dict[tuple[float, int], Simulated] = {}
    for result in results:
        same = (result.step_time_s, result.peak_memory_bytes)
        distinct.setdefault(same, result)
    kinds: dict[tuple[bool, bool], list[Simulated]] = {}
    for result in distinct.values():
        kind = (isinstance(result.plan, LayoutPlan), result.plan.p > 1)
        kinds.setdefault(kind, []).append(result)
    return [result for kind in kinds.values() for result in kind[:width]]
