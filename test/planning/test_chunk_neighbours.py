"""Searches vary the stages per rank of interleaved pipelines."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cost_programs import cluster
from support.training_programs import assert_judged_as_simulated, training_gpt

from distir.planning.auto.space import AutoSpace
from distir.planning.plans.plan import GridPlan, LayoutPlan, Plan
from distir.planning.plans.programs import replace_cluster

GRID = GridPlan(16, d=2, p=4, k=8)
SEARCHED = LayoutPlan(16, p=4, k=8, axes=(("d", 2),))


@pytest.mark.parametrize("pipeline", [GRID, SEARCHED])
def test_only_interleaved_schedules_have_more_stages(pipeline: Plan) -> None:
    space = AutoSpace([16], trains=True, devices=8)

    def chunks(schedule: str, own: int) -> set[int]:
        """The stages per rank of neighbours that differ in these alone."""
        plan = replace(pipeline, schedule=schedule, chunks=own)
        found = {other.chunks: other for other in space.neighbours(plan)}
        return {n for n, other in found.items() if other == replace(plan, chunks=n)}

    assert chunks("interleaved-1f1b", 0) == {4}
    assert chunks("interleaved-zero-bubble", 4) == {0, 8}
    assert not any(chunks(name, 0) for name in ("", "1f1b", "zbv"))
    # Other schedules start with the fewest stages that they can have.
    four = replace(pipeline, schedule="interleaved-1f1b", chunks=4)
    others = [p for p in space.neighbours(four) if p.schedule != four.schedule]
    assert others and not any(p.chunks for p in others)


def test_what_is_judged_is_what_distribute_makes() -> None:
    step = training_gpt(layers=8)
    machine = cluster(2, levels=((2, 1e10, 1e-6),), peak=1e12, bandwidth=1e11)
    replace_cluster(step, machine)
    plan = GridPlan(4, p=2, k=4, schedule="interleaved-1f1b", chunks=4)
    assert_judged_as_simulated(step, plan)
