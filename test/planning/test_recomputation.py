"""Searches find how many layers of each pipeline rank recompute."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.cost_programs import cluster
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.frontends.models.basic import build_gpt
from distir.interpreters.inputs import random_arguments
from distir.interpreters.reference import run_program
from distir.passes.differentiate import DifferentiatePass
from distir.planning.auto.auto import AutoSearch, auto_search
from distir.planning.auto.recomputation import partly_recomputed
from distir.planning.grid import Evaluator, GridPlan, LayoutPlan, Programs
from distir.planning.grid.bounds import Bounds
from distir.planning.grid.evaluate import distribute_as
from distir.planning.layouts.chosen import ChosenLayouts
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.plan import Plan
from distir.planning.plans.result import Impossible, Result, Simulated
from distir.planning.requests import Requests
from distir.transforms.memory.checkpoint_policies import LayerPolicies

LAYERS, RANKS = 8, 2
OF_ALL = ("none", "full")


def machine(memory: int) -> ClusterOp:
    """Devices whose products take longer than anything else."""
    levels = ((RANKS, 1e10, 1e-6),)
    return cluster(
        RANKS, levels=levels, peak=1e9, bandwidth=1e11, launch=0.0, memory=memory
    )


@pytest.fixture(scope="module")
def step() -> ModuleOp:
    """A step of a GPT whose layers keep most of what it needs."""
    module = build_gpt(LAYERS, 16, 4, 32, 16, 16)
    DifferentiatePass(optimizer="sgd", learning_rate=1.0).apply(Context(), module)
    return module


def judged(step: ModuleOp, memory: int, plan: Plan) -> Simulated:
    found = Evaluator(Programs.of([step.clone()], machine(memory))).evaluate(plan)
    assert isinstance(found, Simulated)
    return found


def numbers(checkpoint: str) -> list[int]:
    """How many layers of each rank recompute, where the ranks have as many."""
    of_layers = LayerPolicies.of(checkpoint, "test").of_layers(LAYERS, "test")
    half = LAYERS // RANKS
    return [of_layers[:half].count("full"), of_layers[half:].count("full")]


@pytest.fixture(scope="module")
def limited(step: ModuleOp) -> tuple[int, AutoSearch]:
    """A limit of memory between recomputing nothing and everything, and a search in it."""
    pipeline = GridPlan(16, p=RANKS, k=4)
    none = judged(step, 10**10, pipeline)
    full = judged(step, 10**10, replace(pipeline, checkpoint="full"))
    assert none.layer_ranks == full.layer_ranks == (0, 0, 0, 0, 1, 1, 1, 1)
    memory = (none.peak_memory_bytes + full.peak_memory_bytes) // 2
    options = SearchOptions(
        jobs=1, micro_batches=(4,), checkpoint=OF_ALL, schedules=("1f1b",)
    )
    found = auto_search(
        [step.clone()], machine(memory), options, degrees=[(1, 1, RANKS)]
    )
    found.run()
    return memory, found


def test_the_first_rank_recomputes_more(
    step: ModuleOp, limited: tuple[int, AutoSearch]
) -> None:
    """It keeps values of more micro-batches. Neither rank could recompute less."""
    memory, search = limited
    best = search.best
    assert best is not None and best.fits and search.finished
    first, second = numbers(best.plan.checkpoint)
    assert 4 > first > second
    with_one_policy = [
        r
        for r in search.results.values()
        if isinstance(r, Simulated) and r.plan.checkpoint in OF_ALL and r.fits
    ]
    assert with_one_policy and all(
        r.step_time_s > 1.02 * best.step_time_s for r in with_one_policy
    )
    for fewer in ((first - 1, second), (first, second - 1)):
        if min(fewer) >= 0:
            less = f"full:{fewer[0]}/4+{fewer[1]}/4"
            plan = replace(best.plan, checkpoint=less, stages="", overlap=False)
            assert not judged(step, memory, plan).fits


def test_few_plans_are_judged_for_it(limited: tuple[int, AutoSearch]) -> None:
    _, search = limited
    mixed = {p.checkpoint for p in search.results} - {*OF_ALL}
    assert 1 <= len(mixed) <= 3


def test_it_computes_the_same(step: ModuleOp, limited: tuple[int, AutoSearch]) -> None:
    """The program that is written takes the memory that was promised."""
    memory, search = limited
    best = search.best
    assert best is not None and best.peak_memory_bytes <= memory
    module = search.programs(16)
    distribute_as(module, best, Requests())
    arguments = random_arguments(step, 0)
    pairs = zip(
        run_program(step, arguments), run_program(module, arguments), strict=True
    )
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# What is judged next, from results that are made up: 100 bytes for each layer that keeps
# its values, twice as many on the first of two ranks.

BOUNDS = {8: Bounds({"none": 3.0, "products": 3.5, "full": 4.0}, 1, 0, 0, 10**6)}


def outcome(plan: Plan, seconds: float, *spare: int) -> Simulated:
    ranks = (0, 0, 0, 0, 1, 1, 1, 1) if plan.p > 1 else (0,) * 8
    worst = min(spare)
    return Simulated(
        plan, seconds, 8 / seconds, 1000 - worst, 1000, 1000 - worst, spare,
        layer_ranks=ranks,
    )  # fmt: skip


def proposed(*results: Result) -> list[str]:
    found = partly_recomputed(
        {r.plan: r for r in results}, ("none", "products", "full"), BOUNDS
    )
    return [plan.checkpoint for plan in found]


TWO = GridPlan(8, p=2, k=4)
NONE = outcome(TWO, 3.0, -450, 50)
FULL = outcome(replace(TWO, checkpoint="full"), 4.0, 350, 450)


def mixed(checkpoint: str, seconds: float, *spare: int) -> Simulated:
    return outcome(replace(TWO, checkpoint=checkpoint), seconds, *spare)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ((NONE, FULL), ["full:3/4+0/4"]),
        ((NONE,), []),
        ((FULL,), []),
        # What fits with nothing recomputed recomputes nothing.
        ((outcome(TWO, 3.0, 0, 50), FULL), []),
        # What does not fit needs more, and what leaves much less.
        ((NONE, FULL, mixed("full:3/4+0/4", 3.7, -10, 50)), []),
        ((NONE, FULL, mixed("full:2/4+0/4", 3.6, -50, 50)), ["full:3/4+0/4"]),
        ((NONE, FULL, mixed("full:3/4+0/4", 3.7, 700, 50)), ["full:2/4+0/4"]),
        # Two policies that recompute something.
        (
            (outcome(replace(TWO, checkpoint="products"), 3.5, -100, -1), FULL),
            ["full:1/4+1/4:products"],
        ),
        # It is not worth it if another plan is faster.
        ((NONE, FULL, outcome(GridPlan(8, d=2), 3.5, 0, 0)), []),
    ],
)
def test_what_is_judged_next(results: list[Result], expected: list[str]) -> None:
    assert proposed(*results) == expected


def test_searched_layouts_halve_the_interval() -> None:
    """They use what memory there is, so that nothing else tells how much is missing."""
    plan = LayoutPlan(8, axes=(("d", 2),))
    full = replace(
        outcome(replace(plan, checkpoint="full"), 4.0, 5, 5), layouts=ChosenLayouts(())
    )
    slow = ChosenLayouts((), limited=True)
    for none in (
        Impossible(plan, "no layouts"),
        replace(outcome(plan, 6.0, 0, 0), layouts=slow),
    ):
        assert proposed(none, full) == ["full:1/2"]
        half = replace(
            outcome(replace(plan, checkpoint="full:1/2"), 3.5, 3, 3),
            layouts=ChosenLayouts(()),
        )
        assert proposed(none, full, half) == ["full:1/4"]
        assert proposed(none, full, replace(half, layouts=slow)) == []
        slower = replace(
            half, layouts=slow, step_time_s=5.0, throughput_samples_per_s=1.6
        )
        assert proposed(none, full, slower) == ["full:3/4"]


def test_user_given_policies_alone_are_not_mixed() -> None:
    results = {r.plan: r for r in (NONE, FULL)}
    assert partly_recomputed(results, ("full",), BOUNDS) == []
