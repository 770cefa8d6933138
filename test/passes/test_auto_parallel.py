"""The plans that `auto-parallel` finds: as good as the grid, correct, as requested."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from support.cost_programs import cluster
from support.interrupts import interrupt_after
from support.thoroughness import sampled
from support.training_programs import training_gpt, training_mlp
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.collective_ops.base import CollectiveOp
from distir.dialects.device import ClusterOp, MeshOp
from distir.dialects.dist import layout_of
from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt, build_mlp
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.passes.auto_parallel import AutoParallelPass
from distir.planning.annotations import read_notes
from distir.planning.auto.auto import AutoSearch, auto_search
from distir.planning.auto.explain import by_scope
from distir.planning.auto.results import memory_binds, runner_up
from distir.planning.auto.space import AutoSpace
from distir.planning.grid import (
    Evaluator,
    GridPlan,
    LayoutPlan,
    Programs,
    Simulated,
    Space,
    ranked,
    run,
)
from distir.planning.grid.bounds import Bounds
from distir.planning.grid.evaluate import distribute_as
from distir.planning.layouts import fitted
from distir.planning.layouts.chosen import ChosenLayouts
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.plan import Plan
from distir.planning.plans.result import Impossible, Result, simulated
from distir.planning.requests import Requests
from distir.program import argument_names, entry_function

AXES_OF_FOUR = ((("d", 4),), (("t", 4),), (("d", 2), ("t", 2)))
"""Meshes of four devices."""


def machine(
    devices: int, memory: int = 10**10, latency: float = 1e-6, bandwidth: float = 1e10
) -> ClusterOp:
    return cluster(
        devices,
        levels=((devices, bandwidth, latency),),
        peak=1e12,
        bandwidth=1e11,
        launch=latency,
        memory=memory,
    )


def placed(module: ModuleOp, on: ClusterOp) -> ModuleOp:
    first = module.body.block.first_op
    assert first is not None
    module.body.block.insert_op_before(on, first)
    return module


def distributed(module: ModuleOp, **options: object) -> ModuleOp:
    module = module.clone()
    AutoParallelPass(jobs=1, **options).apply(Context(), module)  # type: ignore[arg-type]
    module.verify()
    return module


def search(
    module: ModuleOp, on: ClusterOp, options: SearchOptions | None = None
) -> AutoSearch:
    found = auto_search([module], on, options or SearchOptions(jobs=1))
    found.run()
    return found


def same_results(sequential: ModuleOp, found: ModuleOp) -> bool:
    arguments = random_arguments(sequential, 0)
    pairs = zip(
        run_program(sequential, arguments), run_program(found, arguments), strict=True
    )
    return all(np.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs)


def splits(module: ModuleOp) -> dict[str, set[str]]:
    """The axes over which the arguments are split."""
    function = entry_function(module)
    return {
        name: set(layout.split_axes)
        for name, type_ in zip(
            argument_names(function), function.function_type.inputs.data, strict=True
        )
        if (layout := layout_of(type_)) is not None
    }


@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_at_least_as_fast_as_the_grid(trains: bool) -> None:
    module = training_mlp(16) if trains else build_gpt(1, 16, 2, 32, 4, 8)
    on = machine(4)
    found = search(module, on)
    best, batch = found.best, found.space.batches[0]
    assert best is not None and found.finished
    grid = Space([batch], trains, 4, zero=(0, 1) if trains else (0,)).plans()
    programs = Programs.of([module], on)
    outcomes = [o for some in run(programs, grid, jobs=1) for o in some]
    assert best.step_time_s <= ranked(outcomes)[0].step_time_s
    # The bounds hold for all that was judged, as `fits` and pruning rely on them.
    bounds = found.bounds[batch]
    for outcome in simulated((*found.results.values(), *outcomes)):
        assert outcome.step_time_s >= bounds.seconds_of(outcome.plan) >= bounds.seconds
        assert outcome.peak_memory_bytes >= bounds.least_bytes(outcome.plan)


def test_what_is_too_large_for_a_device_begins_with_what_needs_little_memory() -> None:
    """
    The first round has plans that fit, of which the search would hear late otherwise; the
    very first one divides the parameters among as many devices as possible.
    """
    module = training_gpt()
    kept = Bounds.of(placed(module.clone(), machine(4)), machine(4), 4)
    on = machine(4, memory=int(0.9 * (kept.parameters + kept.states)))
    rounds: list[set[Plan]] = []

    def on_progress(search: AutoSearch) -> None:
        rounds.append(set(search.results))
        raise KeyboardInterrupt  # the others are those of any search

    found = auto_search([module], on, SearchOptions(jobs=1), on_progress=on_progress)
    found.run()
    assert found.interrupted and found.best is not None and found.best.fits
    surest = GridPlan(4, t=4, k=4, checkpoint="full")
    assert next(iter(found.results)) == surest
    assert {
        (p.t * p.p, p.zero if p.d > 1 else 1, p.checkpoint, p.batch // p.d // p.k)
        for p in rounds[0] - {surest}
        if isinstance(p, GridPlan)
    } == {(split, 1, "full", 1) for split in (1, 2)}
    assert not any(isinstance(plan, LayoutPlan) for plan in rounds[0])
    assert list(found.space.frugal([], found.bounds[4].may_fit)) == []


def test_the_program_is_what_was_promised() -> None:
    """It computes the same, and takes as long as the note says."""
    module = placed(training_mlp(16), machine(2))
    found = distributed(module)
    assert same_results(module, found)
    text = read_notes(found)[-1]
    assert "auto-parallel chose" in text
    assert f"{simulate(found).step_time_s:.4g} s a step" in text


def test_messages_are_in_what_was_promised() -> None:
    """Each plan, searched layouts too, takes as long as the program that it stands for."""
    module, on = training_mlp(4096), machine(2)
    found = auto_search([module], on, SearchOptions(jobs=1))
    found.run()
    best = found.best
    assert best is not None and best.plan.buckets
    known = simulated(found.results.values())
    grid = [r for r in known if isinstance(r.plan, GridPlan)]
    layouts = [r for r in known if isinstance(r.plan, LayoutPlan)]
    for results in (grid, layouts):
        joined = False
        for result in ranked(results)[:4]:
            program = placed(module.clone(), on.clone())
            distribute_as(program, result, Requests())
            assert simulate(program).step_time_s == result.step_time_s
            assert same_results(module, program)
            ops = [op for op in program.walk() if isinstance(op, CollectiveOp)]
            joined = joined or any(op.is_joined for op in ops)
        assert joined


def test_searched_layouts_win_where_the_grid_has_none() -> None:
    """One sequence on four devices: it is split, which no point of the grid does."""
    module = build_gpt(layers=1, d_model=64, heads=2, vocab=64, batch=1, seq=64)
    on = machine(4, latency=1e-9, bandwidth=1e11)
    found = search(module, on, SearchOptions(jobs=1, buckets=False))
    assert found.best is not None and isinstance(found.best.plan, LayoutPlan)
    module = placed(module, on)
    program = distributed(module)
    assert same_results(module, program)
    grid = [o for o in found.results.values() if isinstance(o.plan, GridPlan)]
    assert found.best.step_time_s < 0.95 * ranked(grid)[0].step_time_s
    # A bound is none for communication that overlaps, or for buckets.
    bounded = [o for o in simulated(found.results.values()) if o.bound_s]
    assert bounded
    assert all(o.step_time_s >= o.bound_s * (1 - 1e-9) for o in bounded)
    assert any(plan.overlap for plan in found.results)


def test_layouts_that_are_not_worth_it_are_not_searched_to_the_end() -> None:
    """A plan that no layouts make fast enough says so; one that is, is found as ever."""
    programs = Programs.of([training_mlp(16)], machine(4))

    def evaluated(plan: LayoutPlan, least: float) -> Result:
        evaluator = Evaluator(programs)
        evaluator.least = least
        return evaluator.evaluate(plan)

    for plan in (
        LayoutPlan(16, axes=(("d", 4),), buckets=False),
        LayoutPlan(16, p=2, k=2, axes=(("d", 2),), buckets=False),
    ):
        found = evaluated(plan, 0.0)
        assert isinstance(found, Simulated)
        assert evaluated(plan, 0.999 * found.throughput_samples_per_s) == found
        slow = evaluated(plan, 1e12)
        assert isinstance(slow, Impossible) and "would be too long" in slow.error


def test_what_takes_long_to_judge_is_for_the_best_plans() -> None:
    """
    Overlap and searched stages are tried in one plan at a time, a tenth slower than the best
    one at most.
    """
    rounds: list[list[Simulated]] = [[]]

    def on_progress(search: AutoSearch) -> None:
        rounds.append(simulated(search.results.values()))

    found = auto_search(
        [training_mlp(16)], machine(2), SearchOptions(jobs=1), on_progress=on_progress
    )
    found.run()
    refined: set[Plan] = set()
    for before, after in pairwise(rounds):
        alike = [r for r in ranked(before) if not r.plan.overlap]
        near = {
            plan
            for r in before
            if 1.1 * r.throughput_samples_per_s >= alike[0].throughput_samples_per_s
            for plan in found.space.neighbours(r.plan)
            if plan.overlap + bool(plan.stages) > r.plan.overlap + bool(r.plan.stages)
        }
        new = {r.plan for r in after} - {r.plan for r in before}
        slow = {plan for plan in new if plan.overlap or plan.stages}
        assert slow <= near
        refined |= slow
    assert refined


@pytest.mark.parametrize("jobs", sampled([1, 2], 2))
def test_plans_that_are_not_worth_it_when_their_turn_comes(jobs: int) -> None:
    programs = Programs.of([training_mlp(16)], machine(4))
    plans = Space([16], True, 4).plans()
    promising = {plan for plan in plans if plan.p == 2}
    assert 0 < len(promising) < len(plans)
    judged = run(programs, plans, jobs, is_promising=lambda plan: plan in promising)
    assert {result.plan for some in judged for result in some} == promising


def test_recomputing_is_work_that_bounds_count() -> None:
    bounds = auto_search([training_mlp(16)], machine(4)).bounds[16]
    assert bounds.seconds_at_peak["full"] > bounds.seconds_at_peak["none"]


@pytest.mark.slow
def test_less_memory_is_never_faster() -> None:
    module = training_mlp(8)
    plain = search(module, machine(2)).best
    assert plain is not None
    memory = int(0.9 * plain.peak_memory_bytes)
    best = search(module, machine(2, memory)).best
    assert best is not None and best.plan != plain.plan
    assert best.peak_memory_bytes <= memory
    assert best.step_time_s >= plain.step_time_s * (1 - 1e-9)


def test_nothing_fits() -> None:
    module = placed(build_mlp(2, 8, 8), machine(2, memory=500))
    with pytest.raises(DistIRError) as error:
        distributed(module)
    text = str(error.value)
    assert "the one that needs the least" in text
    assert "Most is taken by" in text and "parameters (" in text
    assert "bytes would do" in text


def test_searched_layouts_that_do_not_fit_get_more_micro_batches() -> None:
    plan = LayoutPlan(64, axes=(("d", 4),))
    space = AutoSpace([64], True, 4)
    assert list(space.smaller(plan)) == [replace(plan, k=4)]
    assert not list(space.smaller(replace(plan, k=32)))
    assert not list(space.smaller(replace(plan, p=2, k=4)))
    asked = AutoSpace([64], True, 4, micro_batches=(2, 8))
    assert list(asked.smaller(replace(plan, k=2))) == [replace(plan, k=8)]
    assert not list(AutoSpace([64], False, 4).smaller(plan))


@pytest.mark.parametrize("fits", [False, True])
def test_they_come_first_while_nothing_fits(fits: bool) -> None:
    """As a user's time may be over before all neighbours were judged."""
    found = auto_search([training_mlp(16)], machine(4))
    gpipe = GridPlan(16, d=2, p=2, k=2, schedule="gpipe")
    meshes = [LayoutPlan(16, axes=axes) for axes in AXES_OF_FOUR]
    memory = found.bounds[16].memory
    found.results = {
        gpipe: Simulated(gpipe, 1.0, 16.0, memory if fits else 2 * memory, memory),
        **{plan: Impossible(plan, "no layouts fit") for plan in meshes},
    }
    following = found._next()  # pyright: ignore[reportPrivateUsage]
    smaller = [plan for plan in following if plan in {replace(m, k=4) for m in meshes}]
    assert len(following) > len(smaller)
    assert smaller == ([] if fits else following[:2])


def test_memory_that_binds_is_named() -> None:
    found = search(build_mlp(2, 8, 8), machine(2))
    best = found.best
    assert best is not None and memory_binds(found) == ""
    faster = replace(best.plan, k=3)
    found.results[faster] = replace(
        best,
        plan=faster,
        throughput_samples_per_s=2 * best.throughput_samples_per_s,
        peak_memory_bytes=2 * best.memory_bytes,
    )
    assert "k=3" in memory_binds(found) and "100 % faster" in memory_binds(found)


def test_memory_that_decided_on_layouts_is_named() -> None:
    found = search(build_mlp(2, 8, 8), machine(2))
    best = found.best
    assert best is not None
    layouts = ChosenLayouts((), limited=True)
    slower = LayoutPlan(best.plan.batch, axes=(("d", 2),), k=5)
    found.results[slower] = replace(best, plan=slower, layouts=layouts, step_time_s=1.0)
    assert "layouts of 1 other plan" in memory_binds(found)
    found.results[best.plan] = replace(best, layouts=layouts)
    assert "layouts of the best plan" in memory_binds(found)


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        (Requests(("nothing:0=d",)), "no argument is called 'nothing'"),
        (Requests(whole=("nothing",)), "no argument is called 'nothing'"),
        (Requests(("input:0=z",)), "over 'z'; choose an axis of d, t, s, u"),
        (Requests(("input:7=d",)), "has no dimension 7"),
        (Requests(("input:0=d",), ("inp*",)), "to be split and to be kept whole"),
    ],
)
def test_requests_that_no_plan_keeps_are_refused_at_once(
    requests: Requests, message: str
) -> None:
    with pytest.raises(DistIRError, match=message):
        auto_search([build_mlp(2, 8, 8)], machine(2), requests=requests)


def test_requests_are_kept() -> None:
    module = placed(training_mlp(16), machine(2))
    names = argument_names(entry_function(module))
    weight = next(name for name in names if name.endswith("weight"))
    assert "t" in splits(distributed(module, shard=(f"{weight}:0=t",)))[weight]
    everything = splits(distributed(module, whole=("*",)))
    assert set().union(*everything.values()) == set()
    with pytest.raises(DistIRError, match="no argument is called 'nothing'"):
        distributed(module, whole=("nothing",))


def test_a_mesh_in_the_module_is_kept() -> None:
    module = placed(build_mlp(2, 32, 16), machine(4))
    cluster = module.body.block.first_op
    assert isinstance(cluster, ClusterOp)
    mesh = MeshOp("grid", "c", [("rows", 2), ("columns", 2)], range(4))
    module.body.block.insert_op_after(mesh, cluster)
    found = distributed(module)
    meshes = [op for op in found.body.block.ops if isinstance(op, MeshOp)]
    assert [op.sym_name.data for op in meshes] == ["grid"]
    assert same_results(module, found)


def test_no_time_still_gives_a_plan() -> None:
    module = placed(training_mlp(16), machine(2))
    found = distributed(module, time_limit=0.0)
    assert "the time was over" in read_notes(found)[-1]
    assert same_results(module, found)


def test_an_interrupt_leaves_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    left = interrupt_after(monkeypatch, 2)
    module = placed(training_mlp(16), machine(2))
    found = distributed(module)
    assert "of 2 plans judged" in read_notes(found)[-1]
    assert read_notes(found)[-1].endswith("the search was interrupted")
    left[0] = 0
    with pytest.raises(DistIRError, match="interrupted before any plan was judged"):
        distributed(module)


def test_options_restrict_the_space() -> None:
    space = AutoSpace(
        [8], True, 4, zero=(0,), checkpoint=("full",), schedules=("gpipe",),
        overlap=(False,),
    )  # fmt: skip
    plans = space.first()
    reached = {n for plan in plans for n in space.neighbours(plan)} | set(plans)
    assert {c.checkpoint for c in reached} == {"full"}
    assert {c.zero for c in reached if isinstance(c, GridPlan)} == {0}
    assert {c.overlap for c in reached} == {False}
    assert {c.schedule for c in reached if c.p > 1} == {"gpipe"}
    axes = {c.axes for c in plans if isinstance(c, LayoutPlan)}
    assert axes == {(("d", 4),), (("d", 2), ("t", 2))}
    with pytest.raises(DistIRError, match="for training steps"):
        auto_search([build_mlp(2, 8, 8)], machine(2), SearchOptions(zero=(1,)))
    with pytest.raises(DistIRError, match="8 devices were asked for"):
        auto_search([build_mlp(2, 8, 8)], machine(2), SearchOptions(world_size=8))


def test_searched_layouts_go_into_pipelines_and_onto_more_axes() -> None:
    space = AutoSpace([16], True, 8)
    pair = LayoutPlan(16, axes=(("d", 2), ("t", 4)))
    near = set(space.neighbours(pair))
    assert replace(pair, axes=(("d", 2), ("t", 2), ("s", 2))) in near
    assert replace(pair, axes=(("d", 2), ("t", 2)), p=2, k=4) in near
    assert replace(pair, axes=(("d", 4),), p=2, k=4) in near
    assert replace(pair, k=2) in near
    pipeline = GridPlan(16, d=2, t=2, p=2, k=4)
    inside = LayoutPlan(16, p=2, k=4, axes=(("d", 2), ("t", 2)))
    assert inside in set(space.neighbours(pipeline))
    near = set(space.neighbours(inside))
    assert replace(inside, p=4, axes=(("d", 2),)) in near
    assert replace(inside, p=1, axes=(("d", 4), ("t", 2))) in near
    assert replace(inside, schedule="zb-h1") in near
    assert all(isinstance(c, LayoutPlan) for c in near)
    devices = {
        c.p * prod(size for _, size in c.axes)
        for c in near
        if isinstance(c, LayoutPlan)
    }
    assert devices == {8}
    limited = replace(space, micro_batches=(8,), schedules=("gpipe",))
    near = {c for c in limited.neighbours(pair) if c.p > 1}
    assert {c.k for c in near} == {8} and {c.schedule for c in near} == {"gpipe"}


def test_known_layouts_are_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another schedule, other stages, overlap: the same layouts, to the second."""
    source = Programs.of([training_mlp(16)], machine(4))
    first = LayoutPlan(16, axes=(("d", 2),), p=2, k=2)
    outcome = Evaluator(source).evaluate(first)
    assert isinstance(outcome, Simulated)
    assert outcome.layouts is not None and not outcome.layouts.limited
    others = [
        replace(first, overlap=True),
        replace(first, schedule="gpipe"),
        replace(first, stages="search"),
    ]
    expected = [Evaluator(source).evaluate(c) for c in others]

    def no_search(*_: object, **__: object) -> None:
        raise AssertionError("layouts are searched")

    monkeypatch.setattr(fitted, "search_layouts", no_search)
    for other, anew in zip(others, expected, strict=True):
        assert outcome.has_layouts_of(other)
        assert Evaluator(source).evaluate(other, outcome) == anew
    assert not outcome.has_layouts_of(replace(first, k=4))
    assert not outcome.has_layouts_of(replace(first, checkpoint="full"))


def test_modules_add_up_to_the_step() -> None:
    module = build_gpt(1, 16, 2, 32, 4, 8)
    found = search(module, machine(2))
    other = runner_up(found)
    assert found.best is not None and other is not None
    assert other.step_time_s >= found.best.step_time_s
    program = Evaluator(found.programs).distributed(found.best.plan, found.best.layouts)
    costs = by_scope(program, ())
    assert sum(c.seconds for c in costs.values()) <= found.best.step_time_s * (1 + 1e-9)
    assert costs["transformer.h.*.mlp.c_fc"].layouts[0].startswith("weight[")
