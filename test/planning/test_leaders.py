"""Which plans `auto-parallel` follows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cost_programs import cluster
from support.training_programs import training_gpt, training_mlp

from distir.dialects.device import ClusterOp
from distir.planning.auto.auto import auto_search
from distir.planning.auto.leaders import leaders
from distir.planning.layouts.chosen import ChosenLayouts
from distir.planning.plans.plan import GridPlan, LayoutPlan, Plan
from distir.planning.plans.result import Simulated


def result(plan: Plan, seconds: float, memory: int = 1) -> Simulated:
    return Simulated(plan, seconds, plan.batch / seconds, memory, 2)


def machine(devices: int, memory: int) -> ClusterOp:
    return cluster(
        devices,
        levels=((devices, 1e10, 1e-6),),
        peak=1e12,
        bandwidth=1e11,
        launch=1e-6,
        memory=memory,
    )


def test_plans_far_from_the_best_are_not_followed() -> None:
    best = result(GridPlan(8, d=4), 1.0)
    near = result(GridPlan(8, d=2, p=2, k=4), 1.25)
    far = result(LayoutPlan(8, axes=(("d", 4),)), 1.35)
    large = result(GridPlan(8, t=4), 0.9, memory=3)
    slow = result(GridPlan(8, t=2), 1.1, memory=3)
    known = [far, near, best, large, slow]
    assert leaders(known, 1, refined=False) == [best, near, large]
    # Others may gain as much by a refinement.
    overlapped = result(GridPlan(8, d=4, overlap=True), 0.7)
    assert leaders([*known, overlapped], 2, refined=True) == [overlapped, best, near]
    # While nothing fits there is no best one.
    assert leaders([slow, large], 2, refined=False) == [slow, large]


def test_a_plan_that_fits_is_not_tried_with_micro_batches() -> None:
    """A pipeline of two ranks has it on twice as many devices among its neighbours."""
    pipeline = LayoutPlan(16, p=2, k=4, axes=(("d", 2),))
    accumulating = LayoutPlan(16, k=4, axes=(("d", 4),))
    memory = 10**10
    found = auto_search([training_mlp(16)], machine(4, memory))
    assert accumulating in found.space.neighbours(pipeline)
    of_pipeline = Simulated(pipeline, 1.0, 16.0, 1, memory)
    for limited in (True, False):
        whole = replace(accumulating, k=1)
        layouts = ChosenLayouts((), limited=limited)
        of_whole = Simulated(whole, 1.1, 16 / 1.1, 1, memory, layouts=layouts)
        found.results = {pipeline: of_pipeline, whole: of_whole}
        following = found._next()  # pyright: ignore[reportPrivateUsage]
        assert (accumulating in following) is limited


@pytest.mark.parametrize("is_large", [True, False])
def test_searched_layouts_come_last_for_a_large_model(is_large: bool) -> None:
    """And sequence parallelism comes before other options that were not tried."""
    step, memory = training_gpt(), 10**10
    found = auto_search([step], machine(4, memory))
    if is_large:
        memory = found.bounds[4].parameters + found.bounds[4].states - 1
        found = auto_search([step], machine(4, memory))
    found._frugal()  # pyright: ignore[reportPrivateUsage]
    plan = GridPlan(4, t=2, p=2, k=4, checkpoint="products")
    found.results = {plan: Simulated(plan, 1.0, 4.0, memory // 2, memory)}
    following = found._next()  # pyright: ignore[reportPrivateUsage]
    searched = [isinstance(other, LayoutPlan) for other in following]
    assert any(searched) and (searched == sorted(searched)) is is_large
    first = following[0]
    assert isinstance(first, GridPlan) and first.sequence_parallel is is_large
