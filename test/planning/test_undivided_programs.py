"""Programs that have no micro-batches: a search finds that out once."""

from __future__ import annotations

import pytest
from support.training_programs import training_mlp
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, f32

from distir.frontends.models.function_builder import FunctionBuilder
from distir.hardware import load_cluster
from distir.passes.differentiate import DifferentiatePass
from distir.planning.grid import Evaluator, run
from distir.planning.plan import GridPlan, LayoutPlan, Plan
from distir.planning.programs import replace_cluster
from distir.planning.result import Impossible, Simulated
from distir.program import ENTRY

BATCH = 8

DIVIDED: list[Plan] = [
    GridPlan(BATCH, p=2, k=2),
    GridPlan(BATCH, p=2, k=4),
    GridPlan(BATCH, d=2, p=2, k=2),
    GridPlan(BATCH, d=2, t=2, k=2),
    LayoutPlan(BATCH, p=2, k=4, axes=(("d", 2),)),
]


def similarities(batch: int) -> ModuleOp:
    """
    Returns a training step that compares each sample of its batch with each other, as CLIP's
    does.
    """
    main = FunctionBuilder(f32)
    h = main.argument("x", (batch, 16), role="input")
    for i in range(2):
        weight = main.argument(f"weight.{i}", (16, 16))
        h = main.op("MatMul", [h, weight], (batch, 16))
    others = main.op("Transpose", [h], (16, batch), perm=[1, 0])
    found = main.op("MatMul", [h, others], (batch, batch))
    module = ModuleOp([main.finish(ENTRY, [found], ["similarities"])])
    DifferentiatePass(loss="mse", optimizer="sgd").apply(Context(), module)
    replace_cluster(module, load_cluster("cpu"))
    return module


def test_plans_are_refused_for_the_reason_that_they_have_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = {plan: Evaluator(similarities).evaluate(plan) for plan in DIVIDED}
    assert all(isinstance(r, Impossible) for r in alone.values())
    evaluator = Evaluator(similarities)
    assert evaluator.refusal(DIVIDED[0]) is None
    assert evaluator.evaluate(DIVIDED[0]) == alone[DIVIDED[0]]

    def refuses(*_: object) -> None:
        raise AssertionError("a plan was distributed")

    with monkeypatch.context() as patched:
        patched.setattr(Evaluator, "_distributed", refuses)
        patched.setattr(Evaluator, "_pipelined_step", refuses)
        for plan in DIVIDED[1:]:
            assert evaluator.evaluate(plan) == alone[plan]
    for whole in (GridPlan(BATCH, d=2), GridPlan(BATCH, p=2)):
        assert isinstance(evaluator.evaluate(whole), Simulated)


def test_what_a_process_finds_out_the_others_know() -> None:
    evaluator = Evaluator(similarities)
    found = [r for rs in run(similarities, DIVIDED, 2, evaluator=evaluator) for r in rs]
    assert {r.plan for r in found} == {*DIVIDED}
    assert evaluator.refusal(GridPlan(BATCH, d=4, p=2, k=8)) is not None
    assert evaluator.refusal(GridPlan(2 * BATCH, p=2, k=2)) is None  # another program


def test_other_impossible_plans_say_nothing_of_their_neighbours() -> None:
    def source(batch: int) -> ModuleOp:
        module = training_mlp(batch)
        replace_cluster(module, load_cluster("cpu"))
        return module

    evaluator = Evaluator(source)
    assert isinstance(evaluator.evaluate(GridPlan(BATCH, p=2, k=3)), Impossible)
    assert evaluator.refusal(GridPlan(BATCH, p=2, k=4)) is None
