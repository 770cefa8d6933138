"""Modules that are distributed as a plan says train as PyTorch does."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.parallel_scripts import batch, planned_refusals, tiny_gpt, training_run
from support.ranks import run_ranks
from support.thoroughness import IS_THOROUGH
from xdsl.dialects.builtin import ModuleOp

import distir
from distir.hardware import load_cluster
from distir.parallel.compilation import training_program
from distir.planning.grid.evaluate import Evaluator
from distir.planning.plans.plan import GridPlan, LayoutPlan, Plan
from distir.planning.plans.plan_search import PlanSearch
from distir.planning.plans.programs import Programs
from distir.planning.plans.saved_plan import SavedPlan
from distir.planning.requests import Requests

TRAINED = dict(loss="cross_entropy")


@functools.cache
def step(layers: int = 1) -> ModuleOp:
    """The training step of the small GPT-2, with AdamW."""
    words, _ = batch(0)
    module = tiny_gpt(layers=layers)
    found, _ = training_program(module, (words,), {}, "cross_entropy", "adamw")
    return found.module


def plan_of(step: ModuleOp, plan: Plan, shard: Sequence[str] = ()) -> SavedPlan:
    """A plan, as a search that found no other would give it."""
    cluster = load_cluster("dgx2")
    search = PlanSearch(Programs.of([step], cluster, (), Requests(tuple(shard))))
    search.results[plan] = Evaluator(search.programs).evaluate(plan)
    return SavedPlan.of(search, lambda: "the only one")


def assert_trains(
    plan: SavedPlan, path: Path, layers: int = 1, evaluates: bool = True
) -> list[int]:
    """
    Saves a plan, and trains, and evaluates, by what is read; gives the bytes of parameters
    per rank.
    """
    plan.save(path)
    ranks = run_ranks(plan.devices, training_run, {"plan": path}, layers, evaluates)
    for rank in ranks:
        assert rank["found"] == [pytest.approx(e, rel=1e-4) for e in rank["expected"]]
        assert rank["parameters"] < 1e-5
        assert not evaluates or rank["output"] < 1e-4
    return [rank["bytes"] for rank in ranks]


def test_a_plan_that_was_searched_for_the_module(tmp_path: Path) -> None:
    words, _ = batch(0)
    options = dict(cluster="dgx2", world_size=2, degrees=[(2, 1, 1)], jobs=1)
    plan = distir.search(tiny_gpt(layers=1), (words,), **TRAINED, **options, zero=3)  # type: ignore[arg-type]
    assert isinstance(plan.result.plan, GridPlan) and plan.result.plan.zero == 3
    first, second = assert_trains(plan, tmp_path / "plan.json", evaluates=IS_THOROUGH)
    whole = sum(p.nbytes for p in tiny_gpt(layers=1).parameters())
    assert first == second < 0.6 * whole


SPLIT = ("*.mlp.c_fc.weight:1=t", "*.mlp.c_proj.weight:0=t", "input_ids:0=d")


def test_searched_layouts(tmp_path: Path) -> None:
    searched = LayoutPlan(8, axes=(("d", 2), ("t", 2)), checkpoint="full")
    plan = plan_of(step(2), searched, SPLIT)
    weight = next(a for a in plan.arguments if a.name.endswith("h.0.mlp.c_fc.weight"))
    assert weight.dims == ((), (("t", None),))
    sizes = assert_trains(plan, tmp_path / "plan.json", 2, IS_THOROUGH)
    assert len(set(sizes)) == 1
    assert sizes[0] < sum(p.nbytes for p in tiny_gpt().parameters())


@pytest.mark.slow
def test_searched_layouts_of_a_pipeline(tmp_path: Path) -> None:
    searched = LayoutPlan(8, axes=(("d", 2),), p=2, k=2)
    assert_trains(plan_of(step(2), searched), tmp_path / "plan.json", 2)


@pytest.mark.slow  # planning/test_recomputation finds such plans, test_a_plan_that_was_searched_for_the_module runs one
def test_the_first_stage_recomputes_more(tmp_path: Path) -> None:
    """The policies of the layers are saved with the plan, and hold for the module's step."""
    checkpoint = "full:1/1+0/1:products"
    plan = plan_of(step(2), GridPlan(8, p=2, k=2, checkpoint=checkpoint))
    assert_trains(plan, tmp_path / "plan.json", 2)
    loaded = SavedPlan.load(tmp_path / "plan.json")
    assert loaded.result.plan == plan.result.plan
    assert loaded.result.plan.checkpoint == checkpoint


def test_parameters_are_kept_in_the_parts_of_their_states(tmp_path: Path) -> None:
    states = ("*c_fc.weight.*:0=d", "input_ids:0=d")
    plan = plan_of(step(), LayoutPlan(8, axes=(("d", 2),)), states)
    weight = next(a for a in plan.arguments if a.name.endswith("h.0.mlp.c_fc.weight"))
    assert weight.stored == ((("d", None),), ())
    sizes = assert_trains(plan, tmp_path / "plan.json")
    assert max(sizes) < sum(p.nbytes for p in tiny_gpt(layers=1).parameters())


def test_what_a_plan_is_not_for(tmp_path: Path) -> None:
    plan = plan_of(step(), GridPlan(8, d=2))
    plan.save(tmp_path / "plan.json")
    (tmp_path / "model.json").write_text('{"model": "gpt"}')
    for told in run_ranks(1, planned_refusals, tmp_path):
        beside, world, path, other = told
        assert "so that t, cluster cannot be given beside plan=" in beside
        assert "the plan (batch=8 d=2 t=1 p=1 k=1) needs 2 processes" in world
        assert "model.json holds no plan" in path
        assert "nowhere.json: No such file" in other or "cannot read" in other


def test_a_plan_for_another_batch_or_for_inference() -> None:
    plan = plan_of(step(), GridPlan(8, d=2))
    words, _ = batch(0)
    arguments = (tiny_gpt(layers=1), (words[:4],), {}, "cross_entropy")
    other = training_program(*arguments)[0].module
    with pytest.raises(distir.DistIRError, match="another batch: it knows input"):
        plan.distribute_step(other.clone())
    with pytest.raises(distir.DistIRError, match="another model or another batch"):
        plan.distribute(other)
    for_inference = replace(plan, trains=False)
    with pytest.raises(distir.DistIRError, match="the plan is for inference"):
        for_inference.distribute_step(step().clone())
