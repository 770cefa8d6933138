"""Ranks the results of a search and describes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distir.planning.plans.plan import LayoutPlan
from distir.planning.plans.result import Impossible, Result, Simulated, simulated


def ranked(results: Iterable[Result]) -> list[Simulated]:
    """
    Returns the results that fit into memory, highest throughput first. Ties are broken
    by less memory, then by fewer searched mesh axes, then by the order of the plans.
    """
    return sorted(
        (result for result in simulated(results) if result.fits),
        key=lambda r: (
            -r.throughput_samples_per_s,
            r.peak_memory_bytes,
            len(r.plan.axes) if isinstance(r.plan, LayoutPlan) else 0,
            r.plan,
        ),
    )


def pareto_front(results: Iterable[Result]) -> list[Simulated]:
    """
    Returns the Pareto front of throughput and memory, fastest first. A result that fits
    belongs to the front if no other result is at least as fast with less memory.
    """
    front: list[Simulated] = []
    for result in ranked(results):
        if not front or result.peak_memory_bytes < front[-1].peak_memory_bytes:
            front.append(result)
    return front


def nothing_fits(results: Sequence[Result]) -> str:
    """
    Explains why no result fits into memory. The text names the smallest memory that
    would suffice. If no plan is possible, the text gives the reason for the first plan.
    """
    possible = simulated(results)
    if not possible:
        first = next(r for r in results if isinstance(r, Impossible))
        return (
            f"none of the {len(results)} configurations is possible; the reason for "
            f"{first.plan}: {first.error}"
        )
    best = min(possible, key=lambda r: (r.needed_bytes, r.plan))
    return (
        f"none of the {len(possible)} possible configurations fits: the one that needs the "
        f"least, {best.plan}, needs {best.needed_bytes / 1e9:.4g} GB on a "
        f"device that has {best.memory_bytes / 1e9:.4g} GB; use devices with more memory, "
        f"more of them, or a smaller batch"
    )


def chosen(best: Simulated, results: Sequence[Result]) -> str:
    """Describes the chosen plan, and how many plans it was chosen from."""
    fitting = sum(result.fits for result in results)
    return (
        f"the grid search chose {best.plan}, the fastest of {fitting} that fit of "
        f"{len(results)} configurations: {best.throughput_samples_per_s:.4g} samples/s, "
        f"{best.peak_memory_bytes / 1e9:.4g} GB on a device"
    )
