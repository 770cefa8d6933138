"""The plans whose neighbours `auto-parallel` judges."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distir.planning.grid.results import ranked
from distir.planning.plans.plan import GridPlan, LayoutPlan, Plan
from distir.planning.plans.result import Result, Simulated, simulated

_FAR = 1.3
"""
No neighbours are judged of a plan that fits but takes this many times as long as the best one
without refinements.
"""


def offloads(plan: Plan) -> bool:
    """Whether a plan has the optimizer's states in the host's memory."""
    return isinstance(plan, GridPlan) and plan.offload_states


def refinements(plan: Plan) -> int:
    """
    Returns how many refinements a plan has (overlap, searched stages, a pipeline with states
    in the host's memory), with each of which it takes several times as long to judge as
    without.
    """
    pipelined = plan.is_pipelined and offloads(plan)
    return plan.overlap + bool(plan.stages) + pipelined


def sorted_results(
    results: Iterable[Result], *, refined: bool
) -> tuple[list[Simulated], list[Simulated]]:
    """
    Returns the results of the plans that fit, the fastest first, and of those that would be
    faster but do not; while nothing fits, these are sorted by their memory. Plans with
    refinements are among them if `refined`.
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
    Returns the plans, `width` of each kind, whose neighbours come next: of those that fit the
    ones that are not far from the best one without refinements, as these may gain others as
    much. Plans with refinements are among them if `refined`.
    """
    fitting, large = sorted_results(results, refined=refined)
    plain = [r.throughput_samples_per_s for r in fitting if not refinements(r.plan)]
    least = max(plain, default=0.0) / _FAR
    near = [r for r in fitting if r.throughput_samples_per_s >= least]
    return [*_first_of_kinds(near, width), *_first_of_kinds(large, width)]


def _first_of_kinds(results: Sequence[Simulated], width: int) -> list[Simulated]:
    """
    Returns the first `width` results of each kind (searched layouts, pipelines, others). Of
    plans with the same outcome only the first counts.
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
