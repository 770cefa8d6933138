"""Plans in files: what is saved distributes the same again, and nothing else is read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.command_line import TWO_LAYERS

from distir.errors import DistIRError
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.planning.grid.evaluate import Evaluator
from distir.planning.plans.plan import GridPlan, LayoutPlan, Plan
from distir.planning.plans.plan_search import PlanSearch
from distir.planning.plans.programs import Programs
from distir.planning.plans.saved_plan import SavedPlan
from distir.planning.requests import Requests
from distir.text import ProgramParser, new_context

PLANS: tuple[Plan, ...] = (
    GridPlan(8, d=2, t=2),
    LayoutPlan(8, axes=(("d", 2), ("t", 2)), overlap=True),
)


def program(text: str = TWO_LAYERS) -> Any:
    return ProgramParser(new_context(), text).parse_module()


def found(plan: Plan, *shard: str, text: str = TWO_LAYERS) -> SavedPlan:
    programs = Programs.of([program(text)], load_cluster("dgx2"), (), Requests(shard))
    search = PlanSearch(programs)
    search.results[plan] = Evaluator(programs).evaluate(plan)
    return SavedPlan.of(search, lambda: "there is no other")


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_what_is_read_is_what_was_saved(plan: Plan, tmp_path: Path) -> None:
    made = found(plan, "l0.weight:1=t")
    made.save(tmp_path / "plan.json")
    read = SavedPlan.load(tmp_path / "plan.json")
    assert read == made
    assert read.explain() == "there is no other"
    assert read.devices == 4
    modules = [program(), program()]
    for one, module in zip((made, read), modules, strict=True):
        one.distribute(module)
    assert str(modules[0]) == str(modules[1])
    assert simulate(modules[0]).step_time_s == read.time_s


def test_copies_remain_separate(tmp_path: Path) -> None:
    made = found(PLANS[1])
    layouts = made.result.layouts
    assert layouts is not None and not layouts.separate
    result = replace(made.result, layouts=replace(layouts, separate=True))
    replace(made, result=result).save(tmp_path / "plan.json")
    read = SavedPlan.load(tmp_path / "plan.json").result.layouts
    assert read is not None and read.separate


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("16x32", "16x64", "another model or another batch: it knows parameter 'l0.w"),
        ("tensor<8x", "tensor<4x", "another batch: it knows input 'x'"),
        ('"l1.weight"', '"last"', "it knows parameter 'l1.weight'.* has no 'l1.weight'"),
        ("onnx.Relu", "onnx.Tanh", "its arguments are the same, but its ops are not"),
        ("(%a, %w2)", "(%h, %w2)", "but its ops are not"),
    ],
)  # fmt: skip
def test_another_program_is_refused(old: str, new: str, told: str) -> None:
    text = TWO_LAYERS.replace(old, new)
    if new == "16x64":
        text = text.replace("32x16", "64x16").replace("8x32", "8x64")
    with pytest.raises(DistIRError, match=told):
        found(PLANS[0]).distribute(program(text))


def test_properties_of_ops_tell_programs_apart() -> None:
    """But not numbers that no plan depends on."""
    softmax, elu = (
        TWO_LAYERS.replace("Relu(%h)", f"{op}(%h) {{{own}}}")
        for op, own in (("Softmax", "axis = 0 : i64"), ("Elu", "alpha = 0.5 : f32"))
    )
    with pytest.raises(DistIRError, match="but its ops are not"):
        found(PLANS[0], text=softmax).distribute(program(softmax.replace("= 0", "= 1")))
    found(PLANS[0], text=elu).distribute(program(elu.replace("0.5", "0.25")))


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("format", "distir plan 0", "another version of DistIR"),
        ("distir", "9.9", "another version of DistIR"),
        ("cluster", "func.func", "is damaged"),
        ("arguments", [{"name": 1}], "is damaged"),
        ("layouts", None, "is damaged"),
        ("layouts", {"steps": 1}, "is damaged"),
        ("result", {}, "is damaged"),
    ],
)
def test_damaged_files(key: str, value: Any, told: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    found(PLANS[1]).save(path)
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {key: value}))
    with pytest.raises(DistIRError, match=told):
        SavedPlan.load(path)


def test_files_that_are_no_plans(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for text, told in (("{", "not JSON"), ("[1]", "holds no plan"), ("{}", "no plan")):
        path.write_text(text)
        with pytest.raises(DistIRError, match=told):
            SavedPlan.load(path)
    with pytest.raises(DistIRError, match="cannot read"):
        SavedPlan.load(tmp_path / "nowhere.json")
    with pytest.raises(DistIRError, match="cannot write"):
        found(PLANS[0]).save(tmp_path / "no" / "folder.json")
