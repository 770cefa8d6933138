"""
Estimates from the plans judged so far: the speed and memory of plans that are not
judged yet, and the duration of the search.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from distir.planning.plans.plan import LayoutPlan, Plan
from distir.planning.plans.result import Result, Simulated

_IMPOSSIBLE = 2.0
"""
The ratio of times, and of bytes, that is recorded for a change that led to an
impossible plan.
"""


@dataclass
class Effects:
    """
    The effects of changes of options on the time and memory of a step. A change that
    made one plan faster most likely makes other plans faster too, so the search tries
    this change first.

    The effect of a change is a pair of ratios after / before, one of times and one of
    bytes. The ratios come from the two plans that were judged most recently among the
    plans that differ in this change.
    """

    _ratios: dict[Hashable, tuple[float, float]] = field(
        default_factory=dict[Hashable, tuple[float, float]]
    )

    def learn(self, before: Simulated, after: Result) -> None:
        """
        Records the effect of the change from one plan to its neighbour. `before` is the
        result of the plan, and `after` the result of the neighbour.
        """
        ratios = _IMPOSSIBLE, _IMPOSSIBLE
        if isinstance(after, Simulated):
            ratios = (
                before.throughput_samples_per_s / after.throughput_samples_per_s,
                after.needed_bytes / max(before.needed_bytes, 1),
            )
        self._ratios[_change(before.plan, after.plan)] = ratios

    def expected_throughput(self, known: Simulated, plan: Plan) -> float:
        """
        Returns the expected samples per second of `plan`, a neighbour of the plan with
        the result `known`. A change that was never tried is expected to change nothing.
        """
        return known.throughput_samples_per_s / self._of(known, plan)[0]

    def may_fit(self, known: Simulated, plan: Plan) -> bool:
        """
        Whether `plan`, a neighbour of the plan with the result `known`, is expected to
        fit into memory. A plan with searched layouts is always expected to fit.
        """
        if isinstance(plan, LayoutPlan) and not isinstance(known.plan, LayoutPlan):
            return True
        return known.needed_bytes * self._of(known, plan)[1] <= known.memory_bytes

    def _of(self, known: Simulated, plan: Plan) -> tuple[float, float]:
        return self._ratios.get(_change(known.plan, plan), (1.0, 1.0))


def _change(before: Plan, after: Plan) -> Hashable:
    """Returns the options in which two plans differ, each with both of its values."""
    old, new = vars(before), vars(after)
    return frozenset(
        (name, old.get(name), new.get(name))
        for name in {*old, *new}
        if old.get(name) != new.get(name)
    )


SAMPLE = 5
"""
The least number of plans that must be judged before the duration of the search is
estimated.
"""

_PART = 4
"""
At least one in this many plans of the first round must be judged before the duration of
the search is estimated.
"""

_OF_LAYOUTS = 10.0
"""
The number of grid plans that are judged in the time of one plan with searched layouts.
It was 5 to 13 for GPT models of 4 and 12 layers on 4 to 16 devices.
"""

_LEAST, _MOST = 1.5, 7.0
"""
The least and the most time of the whole search, as multiples of the time of the first
round. In measurements with GPT models it was 1.6 to 6.5 times as long. The number of
further rounds is not known in advance.
"""


def enough(judged: int, first: Sequence[Plan]) -> bool:
    """
    Whether `judged` plans of the first round (`first`) are enough to estimate the
    duration of the search.
    """
    return judged >= min(max(SAMPLE, len(first) // _PART), len(first))


def forecast(first: Sequence[Plan], judged: int, seconds: float) -> tuple[float, float]:
    """
    Returns the least and the most total seconds that a search will take. `first` are
    the plans of the first round, grid plans first; the first `judged` of them took
    `seconds`.
    """
    weights = [_OF_LAYOUTS if isinstance(p, LayoutPlan) else 1.0 for p in first]
    rate = seconds / max(sum(weights[:judged]), 1.0)
    estimate = rate * sum(weights)
    return max(_LEAST * estimate, seconds), max(_MOST * estimate, seconds)
