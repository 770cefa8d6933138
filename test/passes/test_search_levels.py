"""Levels, gaps, time and profiles of `search-sharding`, on programs with repeated layers."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import Any

import pytest
from support.cost_programs import cluster, parse
from support.moe_programs import moe_step
from support.thoroughness import IS_THOROUGH, chosen
from support.training_programs import training_gpt, training_mlp
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt, build_mlp
from distir.hardware import load_cluster
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.passes.partition import PartitionPass
from distir.passes.search_sharding import SearchShardingPass
from distir.passes.verify_distribution import VerifyDistributionPass
from distir.planning.annotations import read_notes
from distir.planning.costs import CostModel
from distir.planning.layouts import fitted
from distir.planning.layouts.search import LayoutResult, Limits, search_sharding
from distir.planning.meshes import add_mesh
from distir.planning.micro_batch_costs import costs_on
from distir.planning.programs import replace_cluster

NO_LIMIT = Limits()


def found_for(
    program: ModuleOp,
    limits: Limits = NO_LIMIT,
    axes: tuple[tuple[str, int], ...] = (("d", 8),),
    on: ClusterOp | None = None,
    **options: bool,
) -> tuple[LayoutResult, ModuleOp]:
    """What was found for a copy of a program, and the program with it, verified."""
    module = program.clone()
    on = on or load_cluster("dgx2")
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(on, first)
    found = search_sharding(
        module, costs_on(add_mesh(module, axes, on), on), limits, **options
    )
    PartitionPass().apply(Context(), module)
    VerifyDistributionPass().apply(Context(), module)
    return found, module


def gpt(batch: int, seq: int, width: int, layers: int = 2) -> ModuleOp:
    module = build_gpt(
        layers=layers, d_model=width, heads=8, vocab=8192, batch=batch, seq=seq
    )
    DifferentiatePass(optimizer="adamw").apply(Context(), module)
    return module


MODELS = {
    "GPT": lambda: gpt(8, 128, 1024),
    "GPT, one sequence": lambda: gpt(1, 512, 2048),
    "GPT, four layers": lambda: gpt(32, 64, 2048, layers=4),
    "MoE": lambda: moe_step(
        4, groups=16, tokens=1024, width=1024, experts=8, slots=128
    ),
    "MoE, wide": lambda: moe_step(
        4, groups=8, tokens=64, width=2048, experts=8, slots=8
    ),
}


@pytest.mark.parametrize("name", chosen(MODELS, ["GPT", "MoE"]))
def test_segments_cost_at_most_a_tenth_more_than_the_whole(name: str) -> None:
    program = MODELS[name]()
    whole, _ = found_for(program, tie_layers=False)
    segments, module = found_for(program, Limits(level="O2"), tie_layers=False)
    assert whole.gap == 0
    assert segments.method == "segments" and "level O2" in str(segments)
    assert segments.bound <= whole.objective * (1 + 1e-9)
    assert whole.objective * (1 - 1e-9) <= segments.objective <= 1.1 * whole.objective
    assert simulate(module).step_time_s <= segments.objective * (1 + 1e-9)


@pytest.mark.slow
def test_segments_of_two_axes() -> None:
    program = gpt(8, 128, 1024)
    axes = (("d", 2), ("t", 4))
    whole, _ = found_for(program, Limits(gap=1e-3), axes, tie_layers=False)
    assert whole.axis_groups == 1
    segments, _ = found_for(program, Limits(level="O2"), axes, tie_layers=False)
    assert segments.method == "segments"
    assert whole.bound <= segments.objective * (1 + 1e-9) <= 1.1 * whole.objective


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_memory_is_kept_to(level) -> None:
    program = training_mlp(batch=512, optimizer="adam")
    free, _ = found_for(program, Limits(level=level))
    limit = 0.85 * free.peak
    found, module = found_for(program, Limits(limit, level=level))
    assert found.peak <= limit
    assert max(simulate(module).peak_memory_bytes) <= limit + 1
    assert found.objective >= free.objective * (1 - 1e-9)
    with pytest.raises(DistIRError, match="no layouts fit into 100 bytes"):
        found_for(program, Limits(100.0, level=level))


def test_sharing_is_released_where_a_gap_is_asked_for() -> None:
    program = training_gpt(layers=6)
    shared, _ = found_for(program, tie_layers=True)
    assert shared.tied and not shared.released
    found, module = found_for(program, Limits(release=True), tie_layers=True)
    assert found.released and not found.tied and found.gap == 0
    assert found.choices > shared.choices
    assert found.objective <= shared.objective * (1 + 1e-9)
    assert simulate(module).step_time_s <= found.objective * (1 + 1e-9)
    hurried, _ = found_for(program, Limits(release=True, seconds=0.01), tie_layers=True)
    assert hurried.tied and not hurried.released


@pytest.mark.slow
def test_what_comes_out_fits_as_the_simulator_sees_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    Steps of changes of layouts have copies that the solver does not count: it is asked again
    for less. The bound stays that of all plans. Here it is as if a fifth were not counted.
    """
    module = build_gpt(layers=1, d_model=32, heads=4, vocab=512, batch=4, seq=16)
    DifferentiatePass(optimizer="adamw").apply(Context(), module)
    limit = 0.6 * found_for(module, axes=(("d", 4),))[0].peak
    attempts: list[LayoutResult] = []

    def search(
        module: ModuleOp, costs: CostModel, limits: Limits, **options: Any
    ) -> LayoutResult:
        assert limits.memory is not None
        loose = limits.memory if attempts else 1.2 * limits.memory
        limits = replace(limits, memory=loose)
        attempts.append(search_sharding(module, costs, limits, **options))
        return attempts[-1]

    monkeypatch.setattr(fitted, "search_layouts", search)
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(load_cluster("cpu", 4), first)
    SearchShardingPass(("d=4",), memory=limit, gap=0.1).apply(Context(), module)
    assert attempts[0].peak > limit and len(attempts) > 1
    assert max(simulate(module).peak_memory_bytes) <= limit
    note = read_notes(module)[-1]
    above = 100 * (attempts[-1].objective / attempts[0].bound - 1)
    assert f"at most {above:.3g} % above the best" in note


@pytest.mark.slow
def test_sharing_is_released_under_a_limit_too() -> None:
    program = training_gpt(layers=3)
    limits = Limits(0.7 * found_for(program)[0].peak, gap=1e-3)
    shared, _ = found_for(program, limits, tie_layers=True)
    found, _ = found_for(program, replace(limits, release=True), tie_layers=True)
    assert shared.tied and found.released
    assert found.peak <= limits.memory and found.gap <= limits.gap
    assert found.bound <= shared.objective * (1 + 1e-9)
    assert found.objective <= shared.objective * (1 + 1e-3)


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_there_is_an_answer_whenever_the_smallest_peak_fits(level) -> None:
    """Without any time, under a limit that little fits."""
    program = training_mlp(batch=512, optimizer="adam")
    with pytest.raises(DistIRError) as error:
        found_for(program, Limits(100.0))
    smallest = float(str(error.value).split("; ")[1].split(" bytes")[0])
    limits = Limits(1.001 * smallest, seconds=0.0, level=level)
    found, _ = found_for(program, limits)
    assert found.peak <= 1.001 * smallest
    assert 0 <= found.bound <= found.objective


def test_memory_that_nothing_fits_into_is_known_before_anything_is_solved() -> None:
    """Where faster layouts are known, nobody needs to hear how little memory would do."""
    program = training_mlp(batch=512, optimizer="adam")
    quick = Limits(100.0, cutoff=1e9)
    with pytest.raises(DistIRError, match=r"takes \S+ or more\. Most") as error:
        found_for(program, quick)
    least = float(re.findall(r"takes (\S+) or more", str(error.value))[0])
    with pytest.raises(DistIRError) as error:
        found_for(program, Limits(100.0))
    smallest = float(re.findall(r"(\S+) bytes would do", str(error.value))[0])
    assert 0.25 * smallest < least <= smallest
    found, _ = found_for(program, replace(quick, memory=1.001 * smallest))
    assert found.peak <= 1.001 * smallest


def test_profiles_are_part_of_the_prices() -> None:
    """Large products, so that how fast the host issues ops does not matter."""
    module = build_mlp(layers=2, d_model=2048, batch=65536)
    DifferentiatePass(loss="mse", optimizer="sgd").apply(Context(), module)
    on = load_cluster("dgx-a100")
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(on, first)
    plain = module.clone()
    SearchShardingPass(("d=8",)).apply(Context(), plain)
    SearchShardingPass(("d=8",), profile=("A100",)).apply(Context(), module)
    promised = [
        float(read_notes(m)[-1].split(": ")[1].split(" s ")[0]) for m in (plain, module)
    ]
    assert promised[0] != promised[1]
    time = simulate(module, profiles=("A100",)).step_time_s
    assert time <= promised[1] * (1 + 1e-5)


RELU = """
func.func @main(%x: tensor<64x64xf32> {dist.role = "input"}) -> tensor<64x64xf32> {
  %0 = onnx.Relu(%x) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  func.return %0 : tensor<64x64xf32>
}"""


@pytest.mark.parametrize(
    ("module", "solver", "name"),
    [("highspy", "highs", "HiGHS"), ("pulp", "cbc", "PuLP")],
)
def test_a_solver_that_is_not_installed(monkeypatch, module, solver, name) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    program = gpt(1, 16, 64)
    with pytest.raises(DistIRError, match=f"{name} is not installed"):
        found_for(program, Limits(solver=solver))
    # Nothing but integer programs needs it.
    found, _ = found_for(program)
    assert found.gap == 0


def test_bad_options() -> None:
    module = parse(RELU)
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(cluster(2), first)
    with pytest.raises(DistIRError, match="no level 'O1'; choose one of O2, O3"):
        SearchShardingPass(("d=2",), level="O1").apply(Context(), module)
    with pytest.raises(DistIRError, match="no solver 'x'"):
        SearchShardingPass(("d=2",), solver="x").apply(Context(), module)


@pytest.mark.parametrize("goes_on", [pytest.param(True, marks=pytest.mark.slow), False])
def test_the_whole_program_is_never_worse_than_segments(
    monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    """
    What O3 finds may need more memory than it counted, and a tighter limit may then leave
    only slower plans: the plan of O2 is one of those to choose from, whether O3 went on
    from it or O2 has to be asked.
    """
    if goes_on:  # as where an integer program of the whole takes long
        monkeypatch.setattr(sys.modules["distir.solver.solve"], "FEW_COLUMNS", 0)
    module, on = training_mlp(), load_cluster("dgx2")
    replace_cluster(module, on)
    mesh = add_mesh(module, (("d", 2), ("t", 2)) if IS_THOROUGH else (("d", 4),), on)
    free = fitted.FittedSearch(mesh, on, None, Limits(level="O2")).run(module)
    # With so much memory the two levels find different layouts.
    memory = (0.7 if IS_THOROUGH else 0.9) * free.needed
    limits = Limits(memory=memory, level="O2")
    by_segments = fitted.FittedSearch(mesh, on, None, limits).run(module)
    assert by_segments.fits and by_segments.step.seconds > free.step.seconds
    limits = replace(limits, level="O3")
    search = fitted.FittedSearch(mesh, on, None, limits)
    simulated, made = search._plan, list[fitted.FittedPlan]()

    def first_is_too_large(*of: Any) -> fitted.FittedPlan:
        plan = simulated(*of)
        # With copies and without, and what a tighter limit allows.
        is_second_level = not plan.layouts.separate and len(made) == 2
        if not is_second_level:
            plan = replace(plan, occupied=1.1)
        made.append(plan)
        return plan

    monkeypatch.setattr(search, "_plan", first_is_too_large)
    searches, levels = fitted.search_layouts, list[str]()

    def counted(module: Any, costs: Any, limits: Limits, **options: Any) -> Any:
        levels.append(limits.level)
        return searches(module, costs, limits, **options)

    monkeypatch.setattr(fitted, "search_layouts", counted)
    found = search.run(module)
    assert found.fits and found.step == by_segments.step
    assert levels == (["O3"] if goes_on else ["O3", "O2"])
