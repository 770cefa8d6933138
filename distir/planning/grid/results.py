"""Ranking the outcomes of a search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distir.planning.grid.evaluate import Outcome


def ranked(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """
    The outcomes that fit into memory, the highest throughput first; among equals the one
    that needs less memory, then the one with fewer searched axes, then the order of their
    configurations.
    """
    return sorted(
        (o for o in outcomes if o.fits),
        key=lambda o: (
            -o.throughput_samples_per_s,
            o.peak_memory_bytes,
            len(o.configuration.axes),
            o.configuration,
        ),
    )


def pareto_front(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """
    The outcomes that fit and than which none is faster with as little memory, or needs
    less memory at the same throughput; the fastest first.
    """
    front: list[Outcome] = []
    for outcome in ranked(outcomes):
        if not front or outcome.peak_memory_bytes < front[-1].peak_memory_bytes:
            front.append(outcome)
    return front


def nothing_fits(outcomes: Sequence[Outcome]) -> str:
    """Why no outcome fits: the smallest memory that would do, or what is illegal."""
    legal = [o for o in outcomes if o.is_legal]
    if not legal:
        reasons = list(dict.fromkeys(o.error for o in outcomes))
        return (
            f"none of the {len(outcomes)} configurations is possible; the reason for "
            f"{outcomes[0].configuration}: {reasons[0]}"
        )
    best = min(legal, key=lambda o: (o.peak_memory_bytes, o.configuration))
    return (
        f"none of the {len(legal)} possible configurations fits: the one that needs the "
        f"least, {best.configuration}, needs {best.peak_memory_bytes / 1e9:.4g} GB on a "
        f"device that has {best.memory_bytes / 1e9:.4g} GB; use devices with more memory, "
        f"more of them, or a smaller batch"
    )


def chosen(best: Outcome, outcomes: Sequence[Outcome]) -> str:
    """What was chosen, and from what."""
    fitting = sum(o.fits for o in outcomes)
    return (
        f"the grid search chose {best.configuration}, the fastest of {fitting} that fit of "
        f"{len(outcomes)} configurations: {best.throughput_samples_per_s:.4g} samples/s, "
        f"{best.peak_memory_bytes / 1e9:.4g} GB on a device"
    )
