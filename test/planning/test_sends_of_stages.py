"""Searched layouts of pipelines, where sends between the stages count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import pytest
from support.cost_programs import cluster
from support.random_programs import assert_same_results
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.dialects.dist import SendOp, layout_of
from distir.dialects.dist_attributes import PLACE
from distir.dialects.tensors import shape_of
from distir.frontends.models.basic import build_gpt, build_mlp
from distir.interpreters.inputs import random_arguments
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.passes.differentiate import DifferentiatePass
from distir.passes.outline_repeats import OutlineRepeatsPass
from distir.passes.search_sharding import SearchShardingPass
from distir.pipelining import PipelineOptions, build_schedule
from distir.planning.annotations import read_notes
from distir.planning.costs.micro_batches import costs_on, price_of_sends
from distir.planning.costs.rank_links import RankLink
from distir.planning.distribution.meshes import add_mesh
from distir.planning.grid.evaluate import Evaluator
from distir.planning.layouts.chosen import apply_layouts
from distir.planning.layouts.fitted import FittedSearch
from distir.planning.layouts.fitted_plan import FittedPlan
from distir.planning.layouts.search import Limits, search_sharding
from distir.planning.layouts.sends import StagesOfOps, note_places, places_of
from distir.planning.plans.plan import LayoutPlan
from distir.planning.plans.result import Simulated
from distir.sharding.mesh import Mesh
from distir.transforms.partitioning import partition
from distir.transforms.pipelines.pipeline import divided, make_pipeline
from distir.transforms.resharding import lower_reshards


def slow_network() -> ClusterOp:
    """Two nodes of four devices; inside a node links are a hundred times as fast."""
    return cluster(
        8,
        levels=((4, 1e9, 1e-7), (8, 1e7, 1e-6)),
        peak=1e10,
        bandwidth=1e9,
        launch=1e-7,
        reduces=True,
    )


def training_mlp() -> ModuleOp:
    module = build_mlp(layers=4, d_model=64, batch=16)
    DifferentiatePass(loss="mse", optimizer="adam").apply(Context(), module)
    return module


def on_cluster(module: ModuleOp, on: ClusterOp, *axes: tuple[str, int]) -> Mesh:
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(on, first)
    return add_mesh(module, axes, on)


def fitted(module: ModuleOp, **options: Any) -> FittedPlan:
    """Four micro-batches in two stages of four devices that share a node."""
    on = slow_network()
    mesh = on_cluster(module, on, ("k", 4), ("t", 4))
    finish = PipelineOptions(p=2, k=4, **options)
    return FittedSearch(mesh, on, finish, Limits()).run(module)


def sends(module: ModuleOp) -> list[SendOp]:
    return [op for op in module.walk() if isinstance(op, SendOp)]


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("k", [4, 32])
def test_the_price_of_sends(p: int, k: int) -> None:
    """
    A step of k micro-batches takes k + p - 1 times as long as one on a rank. In GPipe 2(p -
    1) messages of 2k(p - 1) are waited for. In 1F1B micro-batches wait for each other's: a
    step grows by nearly all that a rank's share of the messages takes.
    """
    gpipe = price_of_sends(build_schedule("gpipe", p, k, None))
    assert gpipe == pytest.approx(p / (k + p - 1))
    usual = price_of_sends(build_schedule("1f1b", p, k, None))
    assert gpipe < usual <= 1.0
    assert usual > 0.95 or k < 8 * p
    assert price_of_sends(build_schedule("1f1b", p, k, None), blocking=True) == 2.0
    assert price_of_sends(build_schedule("1f1b", 1, k, None)) == 0.0


def test_the_slowest_link() -> None:
    hardware = Hardware.of(slow_network())
    inside, across = (RankLink.slowest(hardware, 2, n) for n in (2, 4))
    assert inside.seconds(1000) == pytest.approx(1e-7 + 1e-6)
    assert across.seconds(1000) == pytest.approx(1e-6 + 1e-4)
    # Between the second and the third rank of two devices the network begins.
    assert RankLink.slowest(hardware, 4, 2).seconds(1000) == across.seconds(1000)
    assert RankLink.slowest(hardware, 1, 4).seconds(1000) == 0.0


def tied_gpt() -> ModuleOp:
    return build_gpt(layers=2, d_model=16, heads=4, vocab=32, batch=4, seq=8)


@pytest.mark.parametrize("build", [training_mlp, tied_gpt])
def test_what_is_sent_is_in_the_cost(build: Callable[[], ModuleOp]) -> None:
    """
    On stages of one device there is one choice of layouts, and sends add to its cost what
    the messages of the pipeline take that comes out, each once for a micro-batch, and a
    table that the first and the last stage need once. (The number of steps that the
    optimizer has done is sent after the micro-batches.)
    """
    module, on = build(), slow_network()
    mesh = on_cluster(module, on, ("k", 4))
    options = PipelineOptions(p=2, k=4)
    schedule = options.schedule_of(4, trains=build is training_mlp)
    costs = costs_on(mesh, on, schedule)
    note_places(places_of(module))
    annotated = module.clone()
    free = search_sharding(annotated, costs)
    partition(annotated)
    pipeline = annotated.clone()
    stages = StagesOfOps.of(divided(annotated, options, ()))
    priced = search_sharding(module.clone(), costs, stages=stages)
    make_pipeline(pipeline, options)
    lower_reshards(pipeline)
    link = RankLink.slowest(Hardware.of(on), 2, 1)
    sizes = [prod(shape_of(send.source.type)) * 4 for send in sends(pipeline)]
    expected = sum(link.seconds(size) for size in sizes if size > 4)
    assert len(sizes) > 4
    added = priced.objective - free.objective
    assert added == pytest.approx(price_of_sends(schedule) * expected)


def test_sends_over_slow_links_are_split() -> None:
    """
    Without them, activations are whole on all devices of a stage between layers, as the
    links of a node sum while they send. With them, each device sends its part.
    """
    module = training_mlp()
    plan = fitted(module.clone())
    before = plan.base
    assert before is not None
    assert plan.step.seconds < 0.8 * before.step.seconds
    assert max(bytes_sent(before.module)) == 4 * max(bytes_sent(plan.module))
    arguments = random_arguments(module, 0)
    for found in (plan, before):
        assert_same_results(module, found.module, arguments)
    assert PLACE not in str(plan.module)
    assert plan.found is not None
    assert "of work, communication and sends" in str(plan.found)


def bytes_sent(module: ModuleOp) -> list[float]:
    """The bytes that each device sends in each message."""
    on = slow_network()
    stage = Mesh("stage", (("t", 4),), tuple(range(4)))
    costs = costs_on(stage, on)
    found: list[float] = []
    for send in sends(module):
        layout = layout_of(send.source)
        assert layout is not None
        found.append(costs.bytes(send.source.type, replace(layout, mesh="stage")))
    return found


def test_nothing_is_solved_again_where_sends_are_cheap() -> None:
    on = cluster(8, levels=((8, 1e12, 0.0),), peak=1e10, bandwidth=1e9, reduces=True)
    module = training_mlp()
    mesh = on_cluster(module, on, ("k", 4), ("t", 4))
    plan = FittedSearch(mesh, on, PipelineOptions(p=2, k=4), Limits()).run(module)
    assert plan.base is None
    assert plan.layouts.without_sends is None


@pytest.mark.parametrize("tie", [False, True])
def test_repeated_layers(tie: bool) -> None:
    """Calls that share their choices count the sends between all of them."""
    module, on = build_mlp(layers=8, d_model=64, batch=16), slow_network()
    DifferentiatePass(loss="mse", optimizer="adam").apply(Context(), module)
    OutlineRepeatsPass().apply(Context(), module)
    mesh = on_cluster(module, on, ("k", 4), ("t", 4))
    options = PipelineOptions(p=2, k=4)
    costs = costs_on(mesh, on, options.schedule_of(4, trains=True))
    note_places(places_of(module))
    annotated = module.clone()
    free = search_sharding(annotated, costs, tie_layers=tie)
    partition(annotated)
    stages = StagesOfOps.of(divided(annotated, options, ()))
    again = module.clone()
    found = search_sharding(again, costs, tie_layers=tie, stages=stages)
    assert found.objective > free.objective
    # The choice is replayed without knowing of stages.
    replayed = module.clone()
    apply_layouts(replayed, mesh, found.layouts)
    assert str(replayed) == str(again)


def test_layouts_for_other_pipelines() -> None:
    """What sends changed is for one pipeline; others take the layouts found before."""
    plan = fitted(training_mlp())
    layouts = plan.layouts
    assert plan.base is not None
    assert layouts.for_any_pipeline == plan.base.layouts
    one = LayoutPlan(16, p=2, k=4, axes=(("t", 4),))
    result = Simulated(one, *plan.step, layouts=layouts)
    other = replace(one, schedule="gpipe")
    assert result.has_layouts_of(other)
    assert result.layouts_for(other) == plan.base.layouts
    assert result.layouts_for(replace(one, overlap=True)) == layouts


def test_a_plan_is_made_again() -> None:
    """The layouts that `search --auto` keeps of a plan mean the program that it judged."""
    module = training_mlp()
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(slow_network(), first)
    evaluator = Evaluator(lambda _: module)
    plan = LayoutPlan(16, p=2, k=4, axes=(("t", 4),))
    result = evaluator.evaluate(plan)
    assert isinstance(result, Simulated)
    assert result.layouts is not None
    assert result.layouts.without_sends is not None
    program = evaluator.distributed(plan, result.layouts)
    assert simulate(program).step_time_s == pytest.approx(result.step_time_s)
    # Layouts that are known are not searched again, nor taken for another pipeline.
    overlapped = evaluator.evaluate(replace(plan, overlap=True), result)
    assert isinstance(overlapped, Simulated)
    assert overlapped.layouts == result.layouts


@pytest.mark.parametrize("options", [{"stages": "search"}, {"schedule": "gpipe"}])
def test_the_pass(options: dict[str, Any]) -> None:
    module = training_mlp()
    found = module.clone()
    first = found.body.block.first_op
    assert first is not None
    found.body.block.insert_op_before(slow_network(), first)
    if "stages" in options:
        options = {"stages": (options["stages"],)}
    SearchShardingPass(("t=4",), p=2, k=4, **options).apply(Context(), found)
    found.verify()
    assert "and sends" in read_notes(found)[-1] or "schedule" in options
    assert_same_results(module, found, random_arguments(module, 0))
