"""Pipelines whose all-to-alls overlap computation, simulated without their programs."""

from __future__ import annotations

from functools import cache

import pytest
from support.thoroughness import chosen
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.llama import build_llama
from distir.hardware import grow, load_cluster
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.planning.auto.leaders import refinements
from distir.planning.auto.space import AutoSpace
from distir.planning.distribution.overlap import overlap_communication
from distir.planning.grid.evaluate import Evaluator, distribute_as
from distir.planning.plans.plan import GridPlan
from distir.planning.plans.programs import Programs
from distir.planning.plans.result import Impossible, Simulated, from_json
from distir.planning.requests import Requests
from distir.program import reachable_functions
from distir.tools.arguments.distribution import written_options

PLAN = GridPlan(128, p=2, k=4, e=16, zero=1)


@cache
def programs() -> Programs:
    """A step whose experts are on the nodes of a cluster with slow links between them."""
    module = build_llama(
        layers=4, d_model=2048, heads=2, kv_heads=2, vocab=32, batch=128, seq=512,
        ffn=2048, experts=16, top_k=4, tied=False, dtype="bf16",
    )  # fmt: skip
    DifferentiatePass(optimizer="sgd", loss="cross_entropy").apply(Context(), module)
    return Programs.of([module], grow(load_cluster("dgx-h100"), 32), ["H100"])


def overlapped(schedule: str, **other: object) -> GridPlan:
    values = vars(PLAN) | {"schedule": schedule, "overlap": True}
    return GridPlan(**values | {"overlap_kinds": "tp,pp"} | other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "schedule",
    chosen(["dualpipev", "dualpipev-whole", "zbv", "1f1b"], quick=["dualpipev"]),
)
def test_the_step_is_that_of_the_program(schedule: str) -> None:
    """
    Time and memory to the last bit. Forwards beside backwards gain where most backwards
    are whole: those of ZB-V are in two parts.
    """
    source = programs()
    evaluator = Evaluator(source)
    plan = overlapped(schedule)
    plain = evaluator.evaluate(overlapped(schedule, overlap=False, overlap_kinds=""))
    found = evaluator.evaluate(plan)
    assert isinstance(plain, Simulated) and isinstance(found, Simulated)
    module = source(128).clone()
    distribute_as(module, found, Requests(), source.profiles)
    simulation = simulate(module, profiles=source.profiles)
    assert found.step_time_s == simulation.step_time_s
    assert found.peak_memory_bytes == max(simulation.peak_memory_bytes)
    assert found.reserved_memory_bytes == max(simulation.reserved_memory_bytes)
    is_joined = any("forward" in n and "backward" in n for n in names(module))
    assert is_joined == schedule.startswith("dualpipev")
    assert (found.step_time_s < 0.98 * plain.step_time_s) == is_joined


def names(module: ModuleOp) -> list[str]:
    return [function.sym_name.data for function in reachable_functions(module)]


def test_plans_of_searches_say_what_overlaps() -> None:
    """The plan's text, its options and its JSON have the kinds of communication."""
    plan = overlapped("dualpipev")
    assert str(plan).endswith("schedule=dualpipev overlap=tp,pp")
    assert "--overlap tp,pp" in written_options(plan.options())
    result = Impossible(plan, "none")
    assert from_json(result.to_json()) == result
    assert "overlap_kinds" not in Impossible(PLAN, "none").to_json()


@pytest.mark.parametrize(
    ("change", "at_once"),
    [
        ({}, True),
        ({"t": 2}, False),
        ({"zero": 2}, False),
        ({"overlap_kinds": ""}, False),
    ],
)
def test_overlap_that_needs_the_program(
    change: dict[str, object], at_once: bool
) -> None:
    """Reductions of activations and gathers of parameters are placed in the program."""
    plan = overlapped("dualpipev", **change)
    assert plan.is_overlapped_at_once == at_once
    assert refinements(plan) == (not at_once)


def test_neighbours_with_experts_on_several_devices() -> None:
    """The schedule and the overlap come together, as neither gains without the other."""
    space = AutoSpace(batches=[128], trains=True, devices=32, e=(1, 16))
    pairs = [
        (plan.schedule, plan.overlap_kinds)
        for plan in space.neighbours(PLAN)
        if plan.overlap_kinds
    ]
    assert set(pairs) == {("dualpipev", "tp,pp"), ("dualpipev-whole", "tp,pp")}
    dense = GridPlan(128, d=16, p=2, k=8, zero=1)
    assert not any(plan.overlap_kinds for plan in space.neighbours(dense))
    for plan in space.neighbours(overlapped("dualpipev")):
        assert plan.overlap or not plan.overlap_kinds
        assert not plan.overlap_kinds or plan.is_overlapped_at_once  # type: ignore[attr-defined]


@pytest.mark.slow
def test_overlap_is_chosen_among_the_same_programs() -> None:
    """Without a profile too, where another program may be the fastest."""
    source = Programs.of([programs()(128)], grow(load_cluster("dgx-h100"), 32))
    evaluator = Evaluator(source)
    found = evaluator.evaluate(overlapped("dualpipev"))
    assert isinstance(found, Simulated)
    module = evaluator.distributed(
        overlapped("dualpipev", overlap=False, overlap_kinds="")
    )
    after = overlap_communication(module, kinds=["tp", "pp"]).simulation
    assert found.step_time_s == after.step_time_s
