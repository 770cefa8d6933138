"""Searches keep the optimizer's states in the host's memory where a step does not fit else."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cost_programs import cluster
from support.training_programs import (
    assert_judged_as_simulated,
    training_gpt,
    training_mlp,
)
from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp

from distir.dialects.device import ClusterOp, KindOp
from distir.errors import DistIRError
from distir.frontends.models.basic import build_mlp
from distir.passes.differentiate import DifferentiatePass
from distir.planning.auto.auto import AutoSearch, auto_search
from distir.planning.auto.space import AutoSpace
from distir.planning.grid import Evaluator, GridPlan, Space
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.programs import replace_cluster
from distir.planning.plans.result import Impossible, Simulated, simulated


def machine(devices: int, memory: int = 10**9) -> ClusterOp:
    return cluster(
        devices,
        levels=((devices, 1e10, 1e-6),),
        peak=1e12,
        bandwidth=1e11,
        launch=1e-6,
        memory=memory,
    )


def on_machine(module: ModuleOp, devices: int, memory: int = 10**9) -> ModuleOp:
    module = module.clone()
    replace_cluster(module, machine(devices, memory))
    return module


def wide_mlp() -> ModuleOp:
    """
    A step whose parameters take far more memory than its activations, and whose states are
    several groups of copies.
    """
    module = build_mlp(layers=8, d_model=2048, batch=4)
    DifferentiatePass(loss="mse").apply(Context(), module)
    return module


@pytest.mark.parametrize(
    "plan",
    [
        GridPlan(4, d=2, zero=1, offload_states=True),
        GridPlan(4, d=2, p=2, k=2, overlap=True, offload_states=True),
        GridPlan(4, p=2, k=2, offload_states=True),
    ],
)
def test_what_is_judged_is_what_distribute_makes(plan: GridPlan) -> None:
    step = on_machine(training_gpt(), plan.devices)
    simulation = assert_judged_as_simulated(step, plan)
    assert max(simulation.host_bytes) > 0


def test_a_host_that_is_too_small_makes_a_plan_impossible() -> None:
    step = on_machine(wide_mlp(), 1)
    for kind in step.walk():
        if isinstance(kind, KindOp):
            kind.properties["host_memory"] = IntegerAttr(1000, 64)
    plan = GridPlan(4, offload_states=True)
    found = Evaluator(lambda batch: step.clone()).evaluate(plan)
    assert isinstance(found, Impossible) and "the memory of its host" in found.error


def test_the_grid_has_them_where_asked() -> None:
    options = SearchOptions(offload_states=("off", "on"))
    plans = Space.of(options, (4,), True, 2).plans()
    assert {replace(p, offload_states=False) for p in plans if p.offload_states} == {
        p for p in plans if not p.offload_states
    }
    with pytest.raises(DistIRError, match="offloading are for training steps"):
        Space.of(options, (4,), False, 2).plans()
    with pytest.raises(DistIRError, match="offload_states cannot be 'maybe'"):
        Space.of(SearchOptions(offload_states=("maybe",)), (4,), True, 2)


def test_it_is_one_step_from_a_plan() -> None:
    space = AutoSpace([4], True, 2)
    plan = GridPlan(4, d=2)
    assert replace(plan, offload_states=True) in list(space.neighbours(plan))
    only = replace(space, offload_states=(False,))
    assert all(
        not other.offload_states
        for other in only.neighbours(plan)
        if isinstance(other, GridPlan)
    )


def search(module: ModuleOp, on: ClusterOp, **options: object) -> AutoSearch:
    found = auto_search([module], on, SearchOptions(jobs=1, **options))  # type: ignore[arg-type]
    found.run()
    return found


def offloads(found: AutoSearch) -> set[bool]:
    """Whether plans that were judged keep states in the host's memory."""
    plans = [plan for plan in found.results if isinstance(plan, GridPlan)]
    return {plan.offload_states for plan in plans}


def test_auto_parallel_tries_it_where_memory_does_not_suffice() -> None:
    step = wide_mlp()
    # As many bytes for gradients, and twice as many for states, a quarter of these in a group.
    parameters = 4 * 8 * (2048 * 2048 + 2048)
    narrow = machine(1, memory=3 * parameters)
    found = search(step, narrow, overlap=("off",))
    assert isinstance(found.best, Simulated) and found.best.fits
    assert isinstance(found.best.plan, GridPlan) and found.best.plan.offload_states
    (bounds,) = found.bounds.values()
    for result in simulated(found.results.values()):
        assert result.step_time_s >= bounds.seconds_of(result.plan)
        assert result.peak_memory_bytes >= bounds.least_bytes(result.plan)
    copies = 4 * parameters / 1e9  # two states, there and back, at `host_bandwidth`
    assert bounds.seconds_of(found.best.plan) == pytest.approx(
        copies + bounds.seconds_of(replace(found.best.plan, offload_states=False))
    )
    assert search(step, narrow, offload_states=("off",)).best is None
    assert offloads(search(step, machine(1), overlap=("off",))) == {False}


def test_without_states_or_links_it_is_not_tried() -> None:
    plain = training_mlp(optimizer="sgd", learning_rate=0.1)
    assert not any(auto_search([plain], machine(2)).space.offload_states)
    unlinked = machine(2)
    for kind in unlinked.walk():
        if isinstance(kind, KindOp):
            del kind.properties["host_bandwidth"]
    assert not any(auto_search([wide_mlp()], unlinked).space.offload_states)
    assert any(auto_search([wide_mlp()], machine(2)).space.offload_states)
