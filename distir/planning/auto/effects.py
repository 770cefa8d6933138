"""What the plans judged so far tell about plans that were not judged yet."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from distir.planning.plans.plan import LayoutPlan, Plan
from distir.planning.plans.result import Result, Simulated

_IMPOSSIBLE = 2.0
"""What stands for the effect of a change that led to a plan that is not possible."""


@dataclass
class Effects:
    """
    How changes of one option changed a step's time and memory: a change that made one plan
    faster most likely makes others faster too, so that it is tried first.

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
