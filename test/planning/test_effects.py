"""What changes of options did to plans, as the order in which others are judged."""

from __future__ import annotations

import pytest

from distir.planning.auto.effects import Effects
from distir.planning.plans.plan import GridPlan, LayoutPlan, Plan
from distir.planning.plans.result import Impossible, Simulated


def result(plan: Plan, samples: float, needed: int) -> Simulated:
    """A plan with that many samples a second and bytes, on a device of 100 bytes."""
    return Simulated(plan, 8 / samples, samples, needed, 100)


def test_a_change_is_expected_to_do_the_same_again() -> None:
    effects = Effects()
    slow = result(GridPlan(8, d=2, p=2, k=4), 10.0, 80)
    fast = result(GridPlan(8, d=2, p=2, k=4, schedule="zbv"), 15.0, 120)
    effects.learn(slow, fast)
    other = result(GridPlan(8, t=2, p=2, k=4), 20.0, 60)
    larger = result(GridPlan(8, t=2, p=2, k=4), 20.0, 90)
    changed = GridPlan(8, t=2, p=2, k=4, schedule="zbv")
    assert effects.expected_throughput(other, changed) == pytest.approx(30.0)
    assert effects.may_fit(other, changed) and not effects.may_fit(larger, changed)
    # Another schedule was never tried.
    unknown = GridPlan(8, t=2, p=2, k=4, schedule="zb-h1")
    assert effects.expected_throughput(other, unknown) == pytest.approx(20.0)


def test_a_change_that_is_not_possible_comes_last() -> None:
    effects = Effects()
    known = result(GridPlan(8, d=2, p=2, k=4), 10.0, 80)
    effects.learn(known, Impossible(GridPlan(8, d=2, p=2, k=8), "too many"))
    assert effects.expected_throughput(known, GridPlan(8, d=2, p=2, k=8)) < 10.0


def test_searched_layouts_may_fit_where_those_of_the_grid_do_not() -> None:
    effects = Effects()
    plan = GridPlan(8, d=2, p=2, k=4)
    large = result(plan, 10.0, 180)
    searched = plan.searched((("d", 2),))
    assert effects.may_fit(large, searched)
    assert not effects.may_fit(large, GridPlan(8, d=2, p=2, k=8))
    failed = result(searched, 10.0, 180)
    assert isinstance(failed.plan, LayoutPlan)
    assert not effects.may_fit(failed, LayoutPlan(8, p=2, k=8, axes=(("d", 2),)))
