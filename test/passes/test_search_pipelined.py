"""Searched layouts for micro-batches, inside pipelines, and on meshes of several axes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from support.cost_programs import cluster
from support.moe_programs import experts_layer
from support.random_programs import arguments_of, assert_same_results, programs
from support.thoroughness import chosen, sampled, tries
from support.training_programs import training_gpt, training_mlp
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp, MeshOp
from distir.dialects.dist import layout_of
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt, build_mlp
from distir.interpreters.inputs import random_arguments
from distir.interpreters.simulator import simulate
from distir.passes.activation_checkpoint import ActivationCheckpointPass
from distir.passes.differentiate import DifferentiatePass
from distir.passes.distribute import DistributePass
from distir.passes.partition import PartitionPass
from distir.passes.search_sharding import SearchShardingPass
from distir.pipelining import PipelineOptions
from distir.planning.annotations import read_notes
from distir.planning.layouts.chosen import apply_layouts
from distir.planning.layouts.search import search_sharding
from distir.planning.meshes import add_mesh
from distir.planning.micro_batch_costs import costs_on
from distir.program import argument_names, entry_function
from distir.transforms.pipelines.pipeline import make_pipeline
from distir.transforms.resharding import lower_reshards


def forward_gpt() -> ModuleOp:
    return build_gpt(layers=2, d_model=16, heads=4, vocab=32, batch=4, seq=8)


def checkpointed_gpt() -> ModuleOp:
    module = training_gpt()
    ActivationCheckpointPass("full").apply(Context(), module)
    return module


def experts() -> ModuleOp:
    return experts_layer(4, 16, 8, 2, 8, 16)


def tied_mlp() -> ModuleOp:
    return training_mlp(batch=16, optimizer="adam")


def slow_machine() -> ClusterOp:
    """Work is dear and communication cheap, so that values are split."""
    return cluster(8, levels=((8, 1e9, 1e-9),), peak=1e6, bandwidth=1e6)


def fabric(memory: int = 10**12) -> ClusterOp:
    """A link that sums as fast as it sends: plain data parallelism is the fastest."""
    return cluster(
        8,
        levels=((8, 1e9, 1e-7),),
        peak=1e10,
        bandwidth=1e9,
        launch=1e-7,
        memory=memory,
        reduces=True,
    )


def placed(module: ModuleOp, on: ClusterOp) -> ModuleOp:
    module = module.clone()
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(on, first)
    return module


def searched(
    module: ModuleOp, on: ClusterOp, *axes: str, **options: object
) -> ModuleOp:
    """The distributed program, verified; the given one stays as it is."""
    found = placed(module, on)
    SearchShardingPass(axes, **options).apply(Context(), found)  # type: ignore[arg-type]
    found.verify()
    return found


def splits(module: ModuleOp) -> dict[str, tuple[str, ...]]:
    """The axes over which each argument is split."""
    function = entry_function(module)
    layouts = map(layout_of, function.function_type.inputs.data)
    return {
        name: layout.split_axes
        for name, layout in zip(argument_names(function), layouts, strict=True)
        if layout is not None
    }


PIPELINES = {
    "accumulation": (training_gpt, ("d=2",), {"k": 2}),
    "two axes": (tied_mlp, ("d=2", "t=2"), {"k": 4}),
    "stages of one device": (training_gpt, (), {"p": 2, "k": 2}),
    "one micro-batch": (training_gpt, ("d=2",), {"p": 2}),
    "gpipe": (tied_mlp, ("t=2",), {"p": 2, "k": 4, "schedule": "gpipe"}),
    "1f1b": (training_gpt, ("d=2", "t=2"), {"p": 2, "k": 4}),
    "zb-h1": (training_gpt, ("t=2",), {"p": 2, "k": 2, "schedule": "zb-h1"}),
    "dualpipev": (
        lambda: training_gpt(layers=4),
        ("d=2",),
        {"p": 2, "k": 4, "schedule": "dualpipev"},
    ),
    "checkpointing": (checkpointed_gpt, ("d=2",), {"p": 2, "k": 4}),
    "searched stages": (
        training_gpt,
        ("d=2",),
        {"p": 2, "k": 2, "stages": ("search",)},
    ),
    "sends that block": (
        forward_gpt,
        ("t=4",),
        {"p": 2, "k": 2, "blocking_sends": True},
    ),
    "experts": (experts, ("e=2",), {"p": 2, "k": 2}),
}
QUICK = ("accumulation", "stages of one device", "zb-h1", "sends that block")


@pytest.mark.parametrize("case", chosen(PIPELINES, QUICK))
def test_pipelines_compute_the_same(case: str) -> None:
    build, axes, options = PIPELINES[case]
    module: ModuleOp = build()
    found = searched(module, slow_machine(), *axes, **options)
    meshes = [op for op in found.body.block.ops if isinstance(op, MeshOp)]
    sizes = [int(axis.partition("=")[2]) for axis in axes]
    assert {prod(n for _, n in op.axes.data) for op in meshes} == {prod(sizes)}
    assert len(meshes) == options.get("p", 1)
    # Work is dear: something is split.
    assert any(splits(found).values()) or not axes
    assert_same_results(module, found, random_arguments(module, 0))


@pytest.mark.parametrize(
    "axes", sampled([(("a=2", "b=2", "c=2"),), (("a=2", "b=2", "c=1", "d=2"),)], 2)
)
def test_meshes_of_several_axes(axes: tuple[str, ...]) -> None:
    module = tied_mlp()
    found = searched(module, slow_machine(), *axes)
    assert_same_results(module, found, random_arguments(module, 0))
    pairs = searched(module, slow_machine(), "a=2", "b=4")
    fast, known = (simulate(m).step_time_s for m in (found, pairs))
    # Three axes can do what two can, up to what choosing one after the other loses.
    assert fast <= 1.2 * known


@pytest.mark.parametrize("build", sampled([tied_mlp, training_gpt], 2))
def test_accumulation_costs_what_was_promised(build: Callable[[], ModuleOp]) -> None:
    """The micro-batches, what they add up to, and the updates, once, are all in the price."""
    for count in (2, 4):
        module = placed(build(), on := slow_machine())
        mesh = add_mesh(module, [("k", count), ("d", 2)], on)
        found = search_sharding(module, costs_on(mesh, on))
        PartitionPass(lower=False).apply(Context(), module)
        make_pipeline(module, PipelineOptions(k=count))
        lower_reshards(module)
        assert simulate(module).step_time_s == pytest.approx(found.objective, rel=0.05)


def test_memory_that_binds_splits_what_is_stored() -> None:
    """
    Split states cost nothing where gradients are scattered anyway (ZeRO stage 2); with less
    memory some parameters are split too (stage 3), at a price.
    """
    module = build_mlp(layers=3, d_model=32, batch=256)
    DifferentiatePass(loss="mse", optimizer="adam").apply(Context(), module)
    free = searched(module, fabric(), "d=4", p=2, k=4)
    plain = simulate(free)
    stored = {n for n, axes in splits(free).items() if axes}
    states = {n for n in splits(free) if "exp_avg" in n}
    assert stored == {"input", "labels", *states}
    memory = int(0.9 * max(plain.peak_memory_bytes))
    tight = searched(module, fabric(memory), "d=4", p=2, k=4)
    simulation = simulate(tight)
    assert max(simulation.peak_memory_bytes) <= memory
    assert simulation.step_time_s >= plain.step_time_s
    more = {n for n, axes in splits(tight).items() if axes} - stored
    assert any(n.endswith("weight") for n in more)
    assert_same_results(module, tight, random_arguments(module, 0))


def test_a_pipeline_that_does_not_fit() -> None:
    module = training_mlp(batch=16)
    with pytest.raises(DistIRError, match=r"fit.* 300 bytes.*bytes would do"):
        searched(module, fabric(300), "d=2", p=2, k=2)


def test_requests_hold_in_pipelines() -> None:
    module = training_mlp(batch=16)
    found = splits(
        searched(
            module,
            slow_machine(),
            "d=2",
            p=2,
            k=2,
            shard=("layers.0.weight:1=d", "labels:0=d"),
            whole=("input", "layers.1.*"),
        )
    )
    assert found["layers.0.weight"] == found["labels"] == ("d",)
    assert found["input"] == found["layers.1.weight"] == ()


@pytest.mark.parametrize(
    ("axes", "options", "message"),
    [
        (
            ("d=2",),
            {"schedule": "gpipe"},
            "schedule is of a pipeline, but p and k are 1",
        ),
        (("d=2",), {"p": 0, "k": 2}, "p=0 stages; choose 1 or more"),
        (("d=2",), {"k": 0}, "k=0 micro-batches; choose 1 or more"),
        (("d=4",), {"p": 4, "k": 4}, "needs 16 devices, but cluster @c has 8"),
        (("d=2",), {"k": 5}, "cannot be split evenly over axis 'k'"),
        (("k=2",), {"k": 2}, "'k' is the micro-batch axis"),
        (("d=2", "k=2"), {}, "'k' is the micro-batch axis"),
    ],
)
def test_what_cannot_be(
    axes: tuple[str, ...], options: dict[str, object], message: str
) -> None:
    with pytest.raises(DistIRError, match=message):
        searched(training_mlp(batch=16), slow_machine(), *axes, **options)


def test_chosen_layouts_are_applied_again() -> None:
    """Without solving, to the letter; on one mesh and over time."""
    for build, axes in (
        (tied_mlp, [("d", 2), ("t", 2)]),
        (training_gpt, [("k", 2), ("d", 2)]),
    ):
        first = placed(build(), on := slow_machine())
        mesh = add_mesh(first, axes, on)
        again = first.clone()
        found = search_sharding(first, costs_on(mesh, on))
        apply_layouts(again, mesh, found.layouts)
        assert str(again) == str(first)


def test_the_note_says_what_was_found() -> None:
    found = searched(training_mlp(batch=16), slow_machine(), "d=2", k=2)
    assert read_notes(found)[-1].startswith("search-sharding: ")


@settings(
    max_examples=tries(8),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(programs(), st.sampled_from([(("d=2",), 2), (("d=2", "t=2"), 2)]))
def test_random_programs_accumulate(
    program: ModuleOp, case: tuple[tuple[str, ...], int]
) -> None:
    """Whatever `distribute` can run in micro-batches, the search can lay out."""
    axes, count = case
    try:
        DistributePass(k=count).apply(Context(), placed(program, slow_machine()))
    except DistIRError:
        reject()
    found = searched(program, slow_machine(), *axes, k=count)
    assert_same_results(program, found, arguments_of(program))
