"""`auto-parallel` splits long sequences where that is the best, without being told to."""

from __future__ import annotations

from support.cost_programs import cluster
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt, build_mlp
from distir.passes.differentiate import DifferentiatePass
from distir.planning.auto.auto import auto_search
from distir.planning.auto.space import AutoSpace
from distir.planning.distribution.context import context_degrees
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.plan import GridPlan


def step(seq: int) -> ModuleOp:
    """A training step on one sequence, with as many heads as no tensor parallelism divides."""
    module = build_gpt(1, 15, 3, 32, batch=1, seq=seq)
    DifferentiatePass(optimizer="sgd").apply(Context(), module)
    return module


def test_degrees_that_are_tried() -> None:
    """Powers of two that divide devices and lengths, of long sequences with attention."""
    assert context_degrees([step(8192)], 8) == (1, 2, 4, 8)
    assert context_degrees([step(8192)], 12) == (1, 2, 4)
    assert context_degrees([step(8198)], 8) == (1, 2)
    assert context_degrees([step(8192), step(64)], 8) == (1,)
    assert context_degrees([build_mlp(1, 8192, 8)], 8) == (1,)


def test_neighbours() -> None:
    """As many devices and samples as before, and ZeRO only over devices that hold batches."""
    space = AutoSpace([4], trains=True, devices=8, next_c=(1, 2, 4))
    for plan in (
        GridPlan(4, d=2, t=2, p=2, k=2, zero=1),
        GridPlan(4, c=2, t=4, k=1, context="ring"),
        GridPlan(4, c=4, d=2, k=2, zero=3, no_sync=True),
    ):
        found = [p for p in space.neighbours(plan) if isinstance(p, GridPlan)]
        assert {p.c for p in found} >= {plan.c // 2 or 2, plan.c}
        for other in found:
            assert other.devices == 8
            assert other.c in space.next_c
            assert other.batch % (other.batch_parts * other.k) == 0
            assert other.d > 1 or not other.zero
            assert other.c > 1 or other.context == "gather"
    degrees = AutoSpace([4], True, 8, degrees=[(4, 2, 1)], next_c=(1, 2, 4))
    assert all(
        plan.c == 1
        for plan in degrees.neighbours(GridPlan(4, d=4, t=2))
        if isinstance(plan, GridPlan)
    )


def test_found_where_nothing_else_splits_the_work() -> None:
    """One sequence, heads that two devices cannot share, and one layer."""
    machine = cluster(2, levels=((2, 1e11, 1e-6),), peak=1e11, bandwidth=1e12)
    options = SearchOptions(jobs=1, checkpoint=("none",), overlap=("off",))
    search = auto_search([step(8192)], machine, options)
    search.run()
    best = search.best
    assert best is not None and isinstance(best.plan, GridPlan) and best.plan.c == 2
