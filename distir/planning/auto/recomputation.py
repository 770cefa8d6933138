"""
Plans that recompute as few layers as memory allows, on each pipeline rank separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from math import ceil

from distir.planning.grid.bounds import Bounds
from distir.planning.grid.results import ranked
from distir.planning.plans.plan import LayoutPlan, Plan
from distir.planning.plans.result import Result, Simulated
from distir.transforms.memory.checkpoint_policies import LayerPolicies

_TRIES = 3
"""
The maximal number of mixtures of two policies that are judged per plan. They differ in
the number of recomputed layers.
"""

_GAIN = 1.005
"""
A mixture is judged only if it is expected to be at least this many times as fast as the
best plan.
"""

_MOST = 2
"""The maximal number of mixtures that are judged at once."""

_WHAT = "search"


def partly_recomputed(
    results: Mapping[Plan, Result],
    policies: Sequence[str],
    bounds: Mapping[int, Bounds],
) -> list[Plan]:
    """
    Returns plans in which some layers have one checkpoint policy and all remaining
    layers another policy, most promising first. Each returned plan lies between two
    judged plans that differ only in their policy. One of the two does not fit (or
    memory decided its layouts). The other one recomputes more and fits.

    - `results`: the plans judged so far;
    - `policies`: the policies that layers may have, the policy that recomputes least
      first;
    - `bounds`: lower bounds of plans, by batch size.

    A mixture is left out if it would hardly be faster than the best plan with the same
    setting of overlap.
    """
    families: dict[Plan, dict[str, Result]] = {}
    for plan, result in results.items():
        family = families.setdefault(replace(plan, checkpoint=policies[0]), {})
        family[plan.checkpoint] = result
    whole = [p for p in policies if LayerPolicies.of(p, _WHAT).is_one]
    best: dict[bool, float] = {}
    for result in ranked(results.values()):
        best.setdefault(result.plan.overlap, result.throughput_samples_per_s)
    found: dict[Plan, float] = {}
    for family in families.values():
        for some, more in combinations(_different(family, whole), 2):
            mixture = _Mixture.of(family, some, more)
            plan = mixture and mixture.next()
            if mixture and plan:
                seconds = mixture.seconds(plan, bounds[plan.batch])
                expected = plan.batch / seconds if seconds else 0.0
                if expected >= best.get(plan.overlap, 0.0) * _GAIN:
                    found[plan] = expected
    return sorted(found, key=lambda plan: (-found[plan], plan))[:_MOST]


def _different(family: Mapping[str, Result], policies: Sequence[str]) -> list[str]:
    """
    Returns the `policies` with a result in `family`, in order. Of policies with equal
    time and memory, only the first is returned.
    """
    found: dict[object, str] = {}
    for policy in policies:
        result = family.get(policy)
        if isinstance(result, Simulated):
            same = result.step_time_s, result.peak_memory_bytes
            found.setdefault(same, policy)
        elif result is not None:
            found[policy] = policy
    return list(found.values())


@dataclass(frozen=True)
class _Mixture:
    """
    A plan in which some layers have the checkpoint policy `more`. All remaining layers
    have the policy `some`, which recomputes less.

    Memory is nearly linear in the number of layers with `more`. The simulated memory of
    a pipeline rank therefore tells how many of its layers need `more`, and each judged
    mixture improves the estimate. Searched layouts use all available memory; for these
    layouts, bisection finds the number of layers.

    - `all_some`, `all_more`: the results with one policy for all layers;
    - `mixed`: the results of mixtures.
    """

    some: str
    more: str
    all_some: Result
    all_more: Simulated
    mixed: Sequence[Result]

    @staticmethod
    def of(family: Mapping[str, Result], some: str, more: str) -> _Mixture | None:
        """
        Returns the mixture of the policies `some` and `more`. Returns None if all
        layers can have `some`, if `more` does not fit either, or if the results that
        are needed are missing. `family` holds the results of a plan by checkpoint
        policy.
        """
        all_some, all_more = family[some], family[more]
        if not isinstance(all_more, Simulated) or not _has_enough(all_more):
            return None
        if not all_more.layer_ranks or _has_enough(all_some):
            return None
        mixed: list[Result] = []
        for text, result in family.items():
            policies = LayerPolicies.of(text, _WHAT)
            both = policies.policy, policies.others
            if not policies.is_one and both == (more, some):
                mixed.append(result)
        return _Mixture(some, more, all_some, all_more, mixed)

    def next(self) -> Plan | None:
        """
        Returns the next plan to judge that mixes the two checkpoint policies, or None
        if there is none.
        """
        known = [
            (self._counts(result.plan), result)
            for result in (self.all_some, *self.mixed, self.all_more)
        ]
        ranks = self.all_more.plan.p
        counts = [
            _least_enough([(n[rank], _spare(r, rank)) for n, r in known])
            for rank in range(ranks)
        ]
        if len(self.mixed) >= _TRIES or any(n == counts for n, _ in known):
            return None
        left, runs = list(counts), list[tuple[int, int]]()
        for rank, layers in groupby(self.all_more.layer_ranks):
            length = len(list(layers))
            runs.append((min(left[rank], length), length))
            left[rank] -= runs[-1][0]
        policies = LayerPolicies.of_runs(self.more, self.some, runs)
        return replace(self.all_more.plan, checkpoint=str(policies))

    def seconds(self, plan: Plan, bounds: Bounds) -> float:
        """
        Estimates the seconds of the mixture `plan` from the times of the plans with one
        policy. The time of a plan is not used if memory decided its layouts. The
        estimate then compares the amounts of work by `bounds`.
        """
        all_some, slow = self.all_some, self.all_more.step_time_s
        if isinstance(all_some, Simulated) and all_some.layouts is None:
            fast = all_some.step_time_s
        else:
            most = bounds.seconds_of(self.all_more.plan)
            fast = slow * bounds.seconds_of(all_some.plan) / most if most else slow
        pairs = zip(self._counts(plan), self._counts(self.all_more.plan), strict=True)
        # The rank that recomputes the most decides on a pipeline's time.
        part = max(some / all_ for some, all_ in pairs if all_)
        return fast + part * (slow - fast)

    def _counts(self, plan: Plan) -> list[int]:
        """
        Returns, for each pipeline rank, the number of layers with the checkpoint policy
        `more` in `plan`.
        """
        ranks = self.all_more.layer_ranks
        policies = LayerPolicies.of(plan.checkpoint, _WHAT).of_layers(len(ranks), _WHAT)
        pairs = zip(ranks, policies, strict=True)
        found = Counter(rank for rank, policy in pairs if policy == self.more)
        return [found[rank] for rank in range(plan.p)]


def _has_enough(result: Result) -> bool:
    """Whether a plan fits and its layouts were not chosen to save memory."""
    layouts = result.layouts if isinstance(result, Simulated) else None
    return result.fits and not (layouts is not None and layouts.limited)


def _spare(result: Result, rank: int) -> float | None:
    """
    Returns the bytes that are left on pipeline rank `rank`; they are negative if memory
    is missing. Returns None if memory is missing but the amount is unknown.
    """
    if not isinstance(result, Simulated):
        return None
    if isinstance(result.plan, LayoutPlan):
        return 0.0 if _has_enough(result) else None
    each = len(result.spare_bytes) // result.plan.p
    return min(result.spare_bytes[rank * each : (rank + 1) * each])


def _least_enough(known: Sequence[tuple[int, float | None]]) -> int:
    """
    Returns the least number of layers with which a rank probably fits. Each pair in
    `known` has a number of layers and the bytes left on the rank. In the pair with the
    most layers, the bytes left must not be negative.
    """
    enough = {n: spare for n, spare in known if spare is not None and spare >= 0}
    most = min(enough)
    lacking = {n: spare for n, spare in known if n not in enough and n < most}
    if not lacking:
        return most
    fewest = max(lacking)
    missing, left = lacking[fewest], enough[most]
    if missing is None:
        return (fewest + most + 1) // 2
    part = -missing / (left - missing)
    return min(max(fewest + ceil((most - fewest) * part), fewest + 1), most)
