"""Results of plans: as JSON data and back, and in order."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest

from distir.planning.plans.plan import GridPlan, LayoutPlan
from distir.planning.plans.result import Impossible, Result, Simulated, from_json

SEARCHED = LayoutPlan(8, axes=(("d", 2), ("t", 16)), p=2, k=4, schedule="zb-h1")

RESULTS: tuple[Result, ...] = (
    Simulated(GridPlan(8, d=2, t=4, zero=3, checkpoint="full"), 0.5, 16.0, 3, 4),
    Simulated(SEARCHED, 0.25, 32.0, 5, 4, bound_s=0.125),
    Simulated(GridPlan(8, d=8), 0.5, 16.0, 3, 4, reserved_memory_bytes=5),
    Impossible(replace(SEARCHED, overlap=True, stages="search"), "too few layers"),
    Impossible(GridPlan(16, p=3, k=2), "16 cannot be split"),
)


def test_json_and_back() -> None:
    rows = [json.loads(json.dumps(result.to_json())) for result in RESULTS]
    assert tuple(map(from_json, rows)) == RESULTS
    assert len({tuple(row) for row in rows}) == 1, "the same keys for all"
    assert [row["fits"] for row in rows] == [True, False, False, False, False]
    assert rows[1]["axes"] == "d=2,t=16" and rows[0]["axes"] == ""


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"d": "2"}, TypeError),
        ({"axes": "d"}, ValueError),
        ({"axes": "d=two"}, ValueError),
        ({"batch": None}, TypeError),
    ],
)
def test_other_data(change: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        from_json(RESULTS[0].to_json() | change)
    with pytest.raises(KeyError):
        from_json({})


def test_plans_have_an_order() -> None:
    plans = [
        GridPlan(8),
        SEARCHED,
        replace(SEARCHED, axes=(("d", 4), ("t", 8))),
        GridPlan(8, t=2, k=2),
        GridPlan(8, d=2),
        LayoutPlan(16, axes=(("d", 2),)),
    ]
    shuffled = Random(0).sample(plans, len(plans))
    assert sorted(shuffled) == plans
