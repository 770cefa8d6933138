"""What a schedule asks for holds in every plan that a search judges."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from math import prod

import pytest
from support.schedules import scheduled, splits
from support.thoroughness import IS_THOROUGH
from support.training_programs import distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import layout_of
from distir.dialects.tensors import shape_of
from distir.frontends.models.basic import build_gpt, build_mlp
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.search_sharding import SearchShardingPass
from distir.planning.auto.auto import AutoSearch, auto_search
from distir.planning.grid.evaluate import distribute_as
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.plan import LayoutPlan
from distir.planning.plans.programs import replace_cluster
from distir.planning.plans.result import Simulated, simulated
from distir.program import argument_names, entry_function, functions
from distir.scheduling import Columns, Schedule
from distir.sharding.mesh import meshes


def step(s: Schedule, module: ModuleOp, **options: object) -> ModuleOp:
    """A training step as a schedule asks for it."""
    asked = scheduled(module, s)
    DifferentiatePass(**options).apply(Context(), asked)  # type: ignore[arg-type]
    return asked


def some(search: AutoSearch) -> Collection[Simulated]:
    """The plans that were judged; in `make test` one of those with the same degrees."""
    found = simulated(search.results.values())
    if IS_THOROUGH:
        return found
    kinds: dict[object, Simulated] = {}
    for result in found:
        plan = result.plan
        degrees = plan.axes if isinstance(plan, LayoutPlan) else (plan.d, plan.t)
        kinds.setdefault((plan.p, degrees), result)
    return kinds.values()


def test_every_plan_of_a_search_keeps_to_the_requests() -> None:
    s = Schedule()
    s["layers.0"].split(Columns("t"))
    s["layers.1"].param("weight").whole("t")
    s["layers.2"].stage()
    asked = step(s, build_mlp(4, 8, 8), loss="mse", optimizer="adam")
    options = SearchOptions(
        jobs=1,
        world_size=4 if IS_THOROUGH else 2,
        zero=(0,),
        checkpoint=("none",),
        micro_batches=(2,),
        overlap=("off",),
    )
    search = auto_search([asked], load_cluster("cpu"), options)
    search.run()
    seen: set[tuple[bool, bool]] = set()
    for result in some(search):
        module = search.programs(result.plan.batch)
        distribute_as(module, result, search.programs.requests)
        module.verify()
        plan, known = result.plan, meshes(module)
        entry = entry_function(module)
        types = dict(
            zip(argument_names(entry), entry.function_type.inputs, strict=True)
        )
        layouts = {name: layout_of(type_) for name, type_ in types.items()}
        first, second = layouts["layers.0.weight"], layouts["layers.1.weight"]
        third = layouts["layers.2.weight"]
        assert first is not None and second is not None and third is not None
        has_t = known[first.mesh].sizes.get("t", 1) > 1
        assert ("t" in [shard.axis for shard in first.dim(1)]) == has_t, plan
        assert "t" not in [shard.axis for shard in first.dim(0)], plan
        assert "t" not in second.split_axes, plan
        assert second.mesh == first.mesh, plan
        assert (third.mesh != first.mesh) == (plan.p > 1), plan
        seen.add((has_t, plan.p > 1))
    assert {(True, False), (False, True)} <= seen


@pytest.mark.slow
def test_every_plan_with_zero_and_recomputation_keeps_to_the_requests() -> None:
    """
    Every plan that is judged, the grid's and those with searched layouts: ZeRO splits over
    "d" what is whole over "t", and the policy of all leaves a layer's own policy alone.
    """
    s = Schedule()
    layers = s["transformer.h.*"]
    layers["mlp.c_fc"].split(Columns("t"))
    layers["mlp.c_proj"].param("weight").whole("t")
    layers.first(1).recompute("full")
    model = build_gpt(layers=2, d_model=8, heads=2, vocab=16, batch=8, seq=4)
    asked = step(s, model, optimizer="adam")
    options = SearchOptions(
        jobs=1,
        world_size=4,
        zero=(3,),
        checkpoint=("none",),
        micro_batches=(1,),
        overlap=("off",),
        schedules=("1f1b",),
    )
    degrees = () if IS_THOROUGH else ((4, 1, 1), (2, 2, 1), (1, 4, 1))
    search = auto_search([asked], load_cluster("cpu"), options, degrees=degrees)
    search.run()
    seen: set[tuple[bool, bool]] = set()
    for result in some(search):
        module = search.programs(result.plan.batch)
        distribute_as(module, result, search.programs.requests)
        plan, known = result.plan, meshes(module)
        entry = entry_function(module)
        types = dict(
            zip(argument_names(entry), entry.function_type.inputs, strict=True)
        )
        stored = False
        for layer in ("transformer.h.0", "transformer.h.1"):
            first = layout_of(types[f"{layer}.mlp.c_fc.weight"])
            second = layout_of(types[f"{layer}.mlp.c_proj.weight"])
            assert first is not None and second is not None
            has_t = known[first.mesh].sizes.get("t", 1) > 1
            assert ("t" in [shard.axis for shard in first.dim(1)]) == has_t, plan
            assert "t" not in second.split_axes, plan
            stored |= has_t and "d" in second.split_axes
        again = [name for name in functions(module) if "_recompute" in name]
        assert len(again) == 1, plan
        seen.add((has_t, stored))
    assert {(True, True), (True, False), (False, False)} <= seen


def test_a_search_splits_over_d_what_stays_whole_over_t() -> None:
    """As ZeRO 3 does, where memory asks for it; a request speaks of its own axis alone."""
    s = Schedule()
    s["layers.*"].param("weight").whole("t")
    asked = step(s, build_mlp(2, 64, 8), loss="mse", optimizer="adam")
    replace_cluster(asked, load_cluster("cpu"))
    SearchShardingPass(axes=("d=2", "t=2"), memory=110e3).apply(Context(), asked)
    found = {name: split for name, split in splits(asked).items() if "weight" in name}
    assert any("d" in split for split in found.values())
    assert all(
        "t" not in found[f"layers.{i}.weight"] and "t" not in found[state]
        for i in range(2)
        for state in (f"layers.{i}.weight.exp_avg", f"layers.{i}.weight.exp_avg_sq")
    )


def test_recomputing_some_layers_saves_memory_in_proportion() -> None:
    """One copy of the layer for all that are computed again, and a line through the peaks."""
    peaks: list[int] = []
    ratios = (0.0, 0.25, 0.5, 0.75) if IS_THOROUGH else (0.25, 0.5)
    layers = 24 if IS_THOROUGH else 8
    for ratio in ratios:
        s = Schedule()
        s["transformer.h.*"].first(ratio).recompute("full")
        found = distributed(step(s, wide_gpt(layers), optimizer="sgd"), d=2)
        copies = [name for name in functions(found) if "_recompute" in name]
        assert len(copies) == (ratio > 0)
        peaks.append(max(simulate(found).peak_memory_bytes))
    # The residuals of a quarter of the layers go each time; their inputs stay, as results of the layers
    # before them.
    saved = [before - after for before, after in pairwise(peaks)]
    per_step = layers // 4 * residuals_of_a_layer()
    if not ratios[0]:
        # Without any recomputation the peak is a moment earlier.
        assert saved.pop(0) == pytest.approx(per_step, rel=2e-4)
    assert saved == [per_step] * len(saved) and saved


def wide_gpt(layers: int) -> ModuleOp:
    """A GPT whose activations take more memory than its parameters."""
    return build_gpt(layers=layers, d_model=16, heads=4, vocab=32, batch=32, seq=32)


def residuals_of_a_layer() -> int:
    """The bytes on one of two devices of what the forward of a layer gives besides its result."""
    found = distributed(step(Schedule(), wide_gpt(4), optimizer="sgd"), d=2)
    forward = functions(found)["layer_forward"]
    residuals = forward.function_type.outputs.data[1:]
    return sum(4 * prod(shape_of(type_)) // 2 for type_ in residuals)
