"""How long a search will take, as the first plans that it judges tell."""

from __future__ import annotations

from collections.abc import Sequence

from distir.planning.plans.plan import LayoutPlan, Plan

SAMPLE = 5
"""The fewest plans that have to be judged before anything can be told."""

_PART = 4
"""One in so many of the first plans is judged before anything is told."""

_OF_LAYOUTS = 10.0
"""
How many plans of the grid are judged in the time of one with searched layouts: 5 to 13 in GPTs
of 4 and 12 layers on 4 to 16 devices.
"""

_LEAST, _MOST = 1.5, 7.0
"""
How many times as long as the first plans the whole search takes. In the same GPTs it was 1.6
to 6.5 times the estimate for the first plans: how many rounds of neighbours there are is not
known before.
"""


def enough(judged: int, first: Sequence[Plan]) -> bool:
    """Whether so many judged plans, of those judged first, tell how long the search takes."""
    return judged >= min(max(SAMPLE, len(first) // _PART), len(first))


def forecast(first: Sequence[Plan], judged: int, seconds: float) -> tuple[float, float]:
    """
    Returns the least and the most seconds that a search takes in all, whose first plans are
    given, those of the grid before others; so many of these were `judged` in these seconds.
    """
    weights = [_OF_LAYOUTS if isinstance(p, LayoutPlan) else 1.0 for p in first]
    rate = seconds / max(sum(weights[:judged]), 1.0)
    estimate = rate * sum(weights)
    return max(_LEAST * estimate, seconds), max(_MOST * estimate, seconds)
