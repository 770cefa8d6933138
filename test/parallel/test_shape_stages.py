"""All programs of a module keep its parameters on the pipeline stages of the first one."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import pytest
from support.parallel_stages import Attending, batch, trained_with_lengths
from support.ranks import run_ranks

from distir.hardware import load_cluster
from distir.parallel.compilation import training_program
from distir.planning.grid.evaluate import Evaluator
from distir.planning.plans.plan import GridPlan, LayoutPlan, Plan
from distir.planning.plans.plan_search import PlanSearch
from distir.planning.plans.programs import Programs
from distir.planning.plans.saved_plan import SavedPlan
from distir.planning.requests import Requests

PLANS: list[dict[str, Any]] = [
    dict(p=2, k=2),
    dict(p=2, k=2, schedule="interleaved-1f1b"),
    dict(p=2, k=2, stages=["mixing.3"]),
    dict(p=2, k=2, stages=["search"]),
    dict(p=2, d=2, k=2, zero=2),
    dict(d=2, zero=3),
    dict(t=2, zero=0),
]


@pytest.mark.slow
@pytest.mark.parametrize("options", PLANS, ids=str)
def test_parameters_stay_where_they_are(options: dict[str, Any]) -> None:
    """Training and evaluation with lengths whose stages of equal work begin elsewhere."""
    size = prod(options.get(axis, 1) for axis in "dtp")
    for rank in run_ranks(size, trained_with_lengths, options, [4, 64], 8):
        for found, expected in rank["losses"]:
            assert found == pytest.approx(expected, rel=1e-9)
        assert rank["outputs"] < 1e-12 and rank["apart"] < 1e-9
        assert rank["moved"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan",
    [
        GridPlan(8, p=2, k=2),
        LayoutPlan(8, axes=(("d", 2),)),
        LayoutPlan(8, axes=(("d", 1),), p=2, k=2),
    ],
    ids=str,
)
def test_plans_of_searches(plan: Plan, tmp_path: Path) -> None:
    """A plan that was found for one length holds for parameters of all."""
    words, _ = batch(8, 4, 0)
    made, _ = training_program(Attending(), (words,), {}, "cross_entropy", "adamw")
    programs = Programs.of([made.module], load_cluster("dgx2"), (), Requests())
    search = PlanSearch(programs)
    search.results[plan] = Evaluator(programs).evaluate(plan)
    path = tmp_path / "plan.json"
    SavedPlan.of(search, lambda: "the only one").save(path)
    for rank in run_ranks(2, trained_with_lengths, {"plan": path}, [4, 16], 8):
        for found, expected in rank["losses"]:
            assert found == pytest.approx(expected, rel=1e-9)
        assert rank["outputs"] < 1e-12 and rank["apart"] < 1e-9
        assert rank["moved"] == []


@pytest.mark.slow
def test_stages_that_evaluation_cannot_have() -> None:
    """The stages of `zbv` go back and forth; those of an evaluation get their parameters."""
    options = dict(p=2, k=2, schedule="zbv")
    for rank in run_ranks(2, trained_with_lengths, options, [4, 16], 8):
        for found, expected in rank["losses"]:
            assert found == pytest.approx(expected, rel=1e-9)
        assert rank["outputs"] < 1e-12 and rank["apart"] < 1e-9
        assert rank["moved"]
