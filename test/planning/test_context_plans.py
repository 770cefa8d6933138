"""Context parallelism in the grid: what is simulated is what is distributed, and found."""

from __future__ import annotations

import pytest
from support.cost_programs import cluster
from support.thoroughness import sampled
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.frontends.models.basic import build_gpt
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.planning.grid.evaluate import Evaluator, distribute_as
from distir.planning.grid.search import GridSearch
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.plan import GridPlan
from distir.planning.plans.programs import Programs
from distir.planning.plans.result import Simulated, from_json
from distir.planning.requests import Requests

MEMORY = 3 * 10**6
LINKS = ((4, 1e9, 1e-6),)


def step() -> ModuleOp:
    """A training step on one long sequence, which no batch can be split for."""
    module = build_gpt(2, 16, 2, 32, batch=2, seq=2048)
    DifferentiatePass(optimizer="sgd").apply(Context(), module)
    return module


def programs(memory: int = 10**12) -> Programs:
    machine = cluster(4, levels=LINKS, peak=1e11, bandwidth=1e11, memory=memory)
    return Programs.of([step()], machine, ())


@pytest.mark.parametrize(
    "plan",
    sampled(
        [
            GridPlan(2, c=4),
            GridPlan(2, c=4, context="ring"),
            GridPlan(2, c=2, p=2, k=2),
            GridPlan(2, c=2, p=2, k=2, context="ring"),
        ],
        3,
    ),
    ids=str,
)
def test_simulated_as_distributed(plan: GridPlan) -> None:
    source = programs()
    result = Evaluator(source).evaluate(plan)
    assert isinstance(result, Simulated), result
    module = source(plan.batch).clone()
    distribute_as(module, result, Requests())
    found = simulate(module)
    assert result.step_time_s == found.step_time_s
    assert result.peak_memory_bytes == max(found.peak_memory_bytes)
    assert from_json(result.to_json()) == result


def test_found_for_long_sequences() -> None:
    """Where memory is short, more parts of the sequence are what fits."""
    options = SearchOptions(c=(1, 4), jobs=1)
    machine = cluster(4, levels=LINKS, peak=1e11, bandwidth=1e11, memory=MEMORY)
    search = GridSearch([step()], machine, options, degrees=[(1, 1, 1)])
    search.run()
    assert [str(p) for p in search.plans] == [
        "batch=2 d=1 t=1 p=1 k=1",
        "batch=2 d=1 t=1 p=1 k=1 c=4 context=gather",
        "batch=2 d=1 t=1 p=1 k=1 c=4 context=ring",
    ]
    best = search.best
    assert best is not None and isinstance(best.plan, GridPlan) and best.plan.c == 4
    fits = {
        str(p): r.fits for p, r in search.results.items() if isinstance(r, Simulated)
    }
    assert not fits["batch=2 d=1 t=1 p=1 k=1"]


def test_all_degrees_that_divide_the_devices() -> None:
    options = SearchOptions(c=(1, 2, 3), jobs=1, micro_batches=(2,))
    machine = cluster(4, levels=LINKS)
    plans = GridSearch([step()], machine, options).plans
    sizes = {(p.d, p.c, p.t, p.p) for p in plans if isinstance(p, GridPlan)}
    assert {(1, 2, 2, 1), (1, 2, 1, 2), (2, 2, 1, 1), (1, 1, 4, 1)} <= sizes
    assert all(d * c * t * p == 4 for d, c, t, p in sizes)


def test_degrees_are_positive() -> None:
    with pytest.raises(DistIRError, match="c=0 must be positive"):
        SearchOptions(c=(0,)).check()
