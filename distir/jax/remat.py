"""`distir.jax.search_remat`: searches the values that `jax.checkpoint` should save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import jax

from distir.errors import DistIRError
from distir.jax.functions import distribute, search
from distir.jax.plan import JaxPlan, Remat

FEW = 4
"""The most names of which all combinations are tried."""

PLANS = 3
"""The number of ways to split the function for which all policies are tried."""


def policies_of(names: Sequence[str]) -> list[Remat]:
    """
    Returns the policies of `jax.checkpoint` to try: save nothing, save everything, save
    the results of products without a batch dimension, and save each combination of the
    values named `names`. With more than four names, the only combinations are all names
    together and each name alone.
    """
    policies = jax.checkpoint_policies
    found = [
        Remat("nothing", policies.nothing_saveable),
        Remat("everything", policies.everything_saveable),
        Remat("products", policies.dots_with_no_batch_dims_saveable),
    ]
    sizes = range(1, len(names) + 1) if len(names) <= FEW else (1, len(names))
    for size in sizes:
        for own in combinations(names, size):
            policy = policies.save_only_these_names(*own)
            found.append(Remat(", ".join(own), policy, own))
    return found


def search_remat(
    step_of: Callable[[Any], Callable[..., Any]],
    args: Sequence[Any],
    *,
    cluster: str,
    devices: int,
    names: Sequence[str] = (),
    **options: Any,
) -> JaxPlan:
    """
    Finds the fastest policy of `jax.checkpoint` together with the fastest way to split
    a function. `step_of(policy)` returns the function, which must use the policy:
    `jax.checkpoint(layer, policy=policy)`. The search calls `step_of` once for each
    policy. The policies save nothing, everything, the results of products, or a
    combination of `names`, which are values that the function names with
    `checkpoint_name`. The plan's `remat` has the best policy, with its name.

    With the policy that saves nothing, the search tries all ways to split the function,
    as `search` does with the same `options`. The search tries all further policies with
    the three best ways only. Raises DistIRError for the same reasons as `search`.
    """
    first, *others = policies_of(names)
    target: dict[str, Any] = {"cluster": cluster, "devices": devices}
    ways: list[dict[str, int]] = []
    best = search(step_of(first.policy), args, **target, **options, ways=ways)
    best = replace(best, remat=first)
    fixed = {k: v for k, v in options.items() if k not in ("zero", "jobs")}
    for own in others:
        function = step_of(own.policy)
        for way in ways[:PLANS]:
            try:
                given: dict[str, Any] = {**target, **fixed, **way}
                plan = distribute(function, args, **given)
            except DistIRError as error:
                raise DistIRError(f"{error} (policy: save {own.name})") from error
            if plan.simulated.simulation.fits and plan.time_s < best.time_s:
                best = replace(plan, remat=own)
    return best
