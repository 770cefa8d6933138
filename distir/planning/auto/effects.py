"""Estimates from the plans judged so far: of plans to come, and of the time they take."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from distir.planning.plans.plan import LayoutPlan, Plan
from distir.planning.plans.result import Result, Simulated

_IMPOSSIBLE = 2.0
"""What stands for the effect of a change that led to a plan that is not possible."""


@dataclass
class Effects:
    """
    The effects of changes of one option on a step's time and memory: a change that made
    one plan faster most likely makes others faster too, so that it is tried first.

    The effect of a change is the ratio of times, and of bytes, after and before it, of the last
    pair of plans that differ in it and that both were judged.
    """

    _ratios: dict[Hashable, tuple[float, float]] = field(
        default_factory=dict[Hashable, tuple[float, float]]
    )

    def learn(self, before: Simulated, after: Result) -> None:
        """Takes note of the results of a plan and of one of its neighbours."""
        ratios = _IMPOSSIBLE, _IMPOSSIBLE
        if isinstance(after, Simulated):
            ratios = (
                before.throughput_samples_per_s / after.throughput_samples_per_s,
                after.needed_bytes / max(before.needed_bytes, 1),
            )
        self._ratios[_change(before.plan, after.plan)] = ratios

    def expected_throughput(self, known: Simulated, plan: Plan) -> float:
        """
        Returns the samples per second to expect of a neighbour of a plan whose result is
        known; a change that was never tried is expected to change nothing.
        """
        return known.throughput_samples_per_s / self._of(known, plan)[0]

    def may_fit(self, known: Simulated, plan: Plan) -> bool:
        """
        Whether a neighbour of a plan whose result is known may be expected to fit, as layouts
        that are searched instead of those of the grid are.
        """
        if isinstance(plan, LayoutPlan) and not isinstance(known.plan, LayoutPlan):
            return True
        return known.needed_bytes * self._of(known, plan)[1] <= known.memory_bytes

    def _of(self, known: Simulated, plan: Plan) -> tuple[float, float]:
        return self._ratios.get(_change(known.plan, plan), (1.0, 1.0))


def _change(before: Plan, after: Plan) -> Hashable:
    """Returns the options that differ, each with both of its values."""
    old, new = vars(before), vars(after)
    return frozenset(
        (name, old.get(name), new.get(name))
        for name in {*old, *new}
        if old.get(name) != new.get(name)
    )


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
