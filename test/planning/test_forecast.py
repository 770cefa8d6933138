"""How long a search will take, from the first plans judged."""

from __future__ import annotations

from distir.planning.auto.effects import SAMPLE, enough, forecast
from distir.planning.plans.plan import GridPlan, LayoutPlan
from distir.tools.reports.reporting import time_range_text

GRID = [GridPlan(batch=8, d=2) for _ in range(20)]
FIRST = [*GRID, *[LayoutPlan(batch=8, axes=(("d", 2),)) for _ in range(2)]]


def test_what_is_told_is_in_proportion_to_the_first_plans():
    least, most = forecast(FIRST, 5, 10.0)
    assert 60 < least < most < 600
    twice = forecast(FIRST, 5, 20.0)
    assert twice == (2 * least, 2 * most)
    # Searched layouts take longer, and that is known before they are judged.
    assert forecast(GRID, 5, 10.0)[0] < least
    # What was spent already is no forecast any more.
    assert min(forecast(FIRST[:1], 1, 3.0)) >= 3.0


def test_a_few_plans_are_judged_first():
    assert not enough(SAMPLE - 1, FIRST) and enough(SAMPLE, FIRST)
    assert not enough(SAMPLE, FIRST * 4)
    assert enough(2, FIRST[:2])


def test_ranges_are_read_by_people():
    assert time_range_text(0.2, 0.9) == "up to 1 second"
    assert time_range_text(4.4, 19.0) == "4 to 19 seconds"
    assert time_range_text(110.0, 300.0) == "2 to 5 minutes"
    assert time_range_text(20.0, 130.0) == "up to 2 minutes"
    assert time_range_text(3000.0, 9000.0) == "1 to 2 hours"
