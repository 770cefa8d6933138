"""Layouts without their program: they mean the same program again, and no other one."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from support.cost_programs import cluster
from support.programs import parse
from support.thoroughness import each_once
from support.training_programs import training_gpt, training_mlp
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import ParseError

from distir.dialects.device import ClusterOp
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt, build_mlp
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.planning.costs.micro_batches import costs_on
from distir.planning.distribution.meshes import add_mesh
from distir.planning.graph.nodes import Node, StrategyGraph
from distir.planning.graph.written_plan import PlannedOp
from distir.planning.grid.evaluate import Evaluator
from distir.planning.layouts import builder
from distir.planning.layouts.chosen import (
    ChosenLayouts,
    apply_layouts,
    follow_requests,
)
from distir.planning.layouts.search import search_sharding
from distir.planning.plans.plan import LayoutPlan
from distir.planning.plans.programs import Programs
from distir.planning.plans.result import Simulated
from distir.sharding.mesh import Mesh

Axes = list[tuple[str, int]]


def machine() -> ClusterOp:
    """Work is dear and communication cheap, so that values are split."""
    return cluster(8, levels=((8, 1e9, 1e-9),), peak=1e6, bandwidth=1e6)


def large_gpt() -> ModuleOp:
    """Five layers, which a search ties if it is told to, of a usual size."""
    module = build_gpt(
        layers=5, d_model=4096, heads=32, vocab=51200, batch=16, seq=1024
    )
    OutlineRepeatsPass().apply(Context(), module)
    DifferentiatePass(loss="cross_entropy", optimizer="adam").apply(Context(), module)
    return module


def repeated_mlp() -> ModuleOp:
    module = build_mlp(layers=6, d_model=16, batch=16)
    DifferentiatePass(loss="mse", optimizer="adam").apply(Context(), module)
    OutlineRepeatsPass().apply(Context(), module)
    return module


def changed_by_micro_batches() -> ModuleOp:
    """
    A function that is called on a parameter and on a micro-batch, and a product over the
    batch that adds a bias.
    """
    return parse("""
        func.func @main(
            %w: tensor<8x8xf32> {dist.role = "parameter", dist.name = "w"},
            %c: tensor<8x8xf32> {dist.role = "parameter", dist.name = "c"},
            %x: tensor<8x8xf32> {dist.role = "input", dist.name = "x"}
        ) -> (tensor<8x8xf32> {dist.name = "y"}, tensor<8x8xf32> {dist.name = "z"}) {
          %a = func.call @layer(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
          %b = func.call @layer(%w) : (tensor<8x8xf32>) -> tensor<8x8xf32>
          %y = onnx.MatMul(%a, %b) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
          %z = onnx.Gemm(%a, %y, %c) {transA = 1 : i64} :
            (tensor<8x8xf32>, tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
          func.return %y, %z : tensor<8x8xf32>, tensor<8x8xf32>
        }
        func.func private @layer(%h: tensor<8x8xf32>) -> tensor<8x8xf32> {
          %r = onnx.Relu(%h) : (tensor<8x8xf32>) -> tensor<8x8xf32>
          func.return %r : tensor<8x8xf32>
        }
    """)


def placed(build: Callable[[], ModuleOp], axes: Axes) -> tuple[ModuleOp, Mesh]:
    module, on = build(), machine()
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(on, first)
    return module, add_mesh(module, axes, on)


def chosen_for(module: ModuleOp, mesh: Mesh, tie: bool = False) -> ChosenLayouts:
    costs = costs_on(mesh, next(o for o in module.ops if isinstance(o, ClusterOp)))
    return search_sharding(module, costs, tie_layers=tie).layouts


def read_again(layouts: ChosenLayouts) -> ChosenLayouts:
    """From the text of a file, and from another process."""
    read = ChosenLayouts.from_json(json.loads(json.dumps(layouts.to_json())))
    assert read == layouts
    return pickle.loads(pickle.dumps(read))


CASES: dict[str, tuple[Callable[[], ModuleOp], Axes]] = {
    "several axes": (training_gpt, [("d", 2), ("t", 2)]),
    "over time": (training_gpt, [("k", 2), ("d", 2)]),
    "called in several ways": (repeated_mlp, [("k", 4), ("d", 2), ("t", 2)]),
    "changed before": (changed_by_micro_batches, [("k", 2), ("d", 2)]),
    "parameters alone": (training_mlp, [("t", 4)]),
}


@pytest.mark.parametrize(("case", "tie"), each_once(list(CASES), [True, False]))
def test_layouts_are_applied_to_the_letter(case: str, tie: bool) -> None:
    module, mesh = placed(*CASES[case])
    again = module.clone()
    layouts = read_again(chosen_for(module, mesh, tie))
    apply_layouts(again, mesh, layouts)
    assert str(again) == str(module)


def test_copies_that_micro_batches_need_are_a_step() -> None:
    module, mesh = placed(*CASES["changed before"])
    before, _ = chosen_for(module, mesh).steps
    assert len(before.functions) == 3
    assert "@layer_1" in str(module)


def test_so_are_decompositions() -> None:
    module, mesh = placed(changed_by_micro_batches, [("d", 2)])
    before, *_, after = follow_requests(module, mesh, ["d"]).steps
    entry = before.functions[0]
    split = [
        op.name for op in entry.ops if isinstance(op, PlannedOp) and op.layouts.parts
    ]
    assert split == ["onnx.Gemm"]
    assert len(after.functions[0].ops) > len(entry.ops)


@pytest.mark.parametrize("case", CASES)
def test_so_are_those_that_follow_from_requests(case: str) -> None:
    module, mesh = placed(*CASES[case])
    again = module.clone()
    axes = [name for name, _ in mesh.axes if name != "k"]
    layouts = read_again(follow_requests(module, mesh, axes[:1]))
    apply_layouts(again, mesh, layouts)
    assert str(again) == str(module)


def test_functions_need_not_have_the_same_names() -> None:
    module, mesh = placed(*CASES["called in several ways"])
    other = parse(str(module).replace("@layer", "@block"))
    layouts = chosen_for(module, mesh)
    apply_layouts(other, mesh, layouts)
    assert str(other).replace("@block", "@layer") == str(module)


def test_a_pipeline_of_tied_layers_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    While it is searched for, the ops of a pipeline's program know their places. These say
    nothing about layouts: what is tied elsewhere is tied there.
    """
    monkeypatch.setattr(builder, "MAX_OPS", 0)
    evaluator = Evaluator(Programs.of([large_gpt()], load_cluster("dgx2")))
    plan = LayoutPlan(16, p=2, k=4, axes=(("d", 2),))
    result = evaluator.evaluate(plan)
    assert isinstance(result, Simulated)
    program = evaluator.distributed(plan, result.layouts)
    assert simulate(program).step_time_s == result.step_time_s


def test_a_choice_is_one_alternative_for_each_node() -> None:
    graph: StrategyGraph[Any, Any] = StrategyGraph(lambda _: None)
    graph.add(Node("the only one", ["a", "b"], [0.0, 0.0]), 1)
    assert list(graph.chosen([1]).values()) == ["b"]
    with pytest.raises(ValueError, match="zip"):
        graph.chosen([1, 0])


OTHER_PROGRAMS: dict[str, tuple[Callable[[], ModuleOp], str]] = {
    "an op more": (lambda: training_mlp(batch=16), "has .* ops, and .* there"),
    "no calls": (training_gpt, "for another program"),
}


@pytest.mark.parametrize("case", OTHER_PROGRAMS)
def test_another_program_is_refused(case: str) -> None:
    build, told = OTHER_PROGRAMS[case]
    module, mesh = placed(repeated_mlp, [("d", 2)])
    layouts = chosen_for(module, mesh)
    other, _ = placed(build, [("d", 2)])
    with pytest.raises(DistIRError, match=told):
        apply_layouts(other, mesh, layouts)


def test_what_a_tensor_cannot_have_is_refused() -> None:
    module, mesh = placed(training_mlp, [("d", 2)])
    other = module.clone()
    data = json.dumps(chosen_for(module, mesh).to_json())
    assert "[{d}" in data
    for old, new, told in (
        ("{d}", "{e}", "has no axis 'e'"),
        ("<@", "<@other_", "is on mesh @other_"),
        ("[{d}", "[{d:3}", "in runs of 3"),
        ("onnx.Relu", "onnx.Tanh", "onnx.Tanh there"),
    ):
        assert old in data, old
        wrong = ChosenLayouts.from_json(json.loads(data.replace(old, new)))
        with pytest.raises(DistIRError, match=told):
            apply_layouts(other.clone(), mesh, wrong)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("limited", 1),
        ("steps", []),
        ("steps", [{}]),
        ("steps", [{"layouts": [], "ops": [], "functions": []}]),
        ("steps", [{"layouts": ["<@m> more"], "ops": [], "functions": [1]}]),
        ("steps", [{"layouts": ["<@m, [{d}, {d}]>"], "ops": [], "functions": [1]}]),
        ("steps", [{"layouts": [7], "ops": [], "functions": [1]}]),
        ("steps", [{"layouts": [], "ops": [["func.call", 1]], "functions": [1]}]),
        ("steps", [{"layouts": [], "ops": [["func.call", -1]], "functions": [1]}]),
        ("steps", [{"layouts": [], "ops": [["a", [0], [], []]], "functions": [1]}]),
    ],
)
def test_other_data_are_no_layouts(key: str, value: Any) -> None:
    data = {"limited": False, "separate": False, "steps": [], key: value}
    with pytest.raises((KeyError, TypeError, ValueError, ParseError)):
        ChosenLayouts.from_json(data)
