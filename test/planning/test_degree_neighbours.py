"""Searches reach other degrees of parallelism of models with experts."""

from __future__ import annotations

from dataclasses import replace

from distir.planning.auto.space import AutoSpace
from distir.planning.plans.plan import GridPlan, Space

PLAN = GridPlan(64, d=2, e=2, p=2, k=4, zero=1)
SPACE = AutoSpace((64,), True, 8, e=(1, 2, 4, 8))


def degrees(space: AutoSpace, plan: GridPlan) -> set[tuple[int, int, int, int, int]]:
    """The degrees d, t, p and e and micro-batches of neighbours with others than the plan's."""
    found = [n for n in space.neighbours(plan) if isinstance(n, GridPlan) and n.r == 1]
    assert all(n.devices == 8 for n in found)
    sizes = {(n.d, n.t, n.p, n.e, n.k) for n in found}
    return {s for s in sizes if s[:4] != (plan.d, plan.t, plan.p, plan.e)}


def test_a_factor_of_two_moves_from_one_degree_to_another() -> None:
    """Micro-batches keep their 4 sequences for each device."""
    assert degrees(SPACE, PLAN) == {
        *((1, 2, 2, 2, 8), (1, 1, 4, 2, 8), (1, 1, 2, 4, 4)),
        *((4, 1, 1, 2, 2), (2, 2, 1, 2, 4), (2, 1, 1, 4, 2)),
        *((4, 1, 2, 1, 4), (2, 2, 2, 1, 8), (2, 1, 4, 1, 8)),
    }


def test_only_for_models_with_experts() -> None:
    """Others have few combinations of degrees, all of which the first round has."""
    assert not degrees(replace(SPACE, e=(1,)), replace(PLAN, e=1, d=4))
    assert not degrees(replace(SPACE, degrees=[(2, 1, 2)]), PLAN)


def test_plans_stay_possible() -> None:
    """One sample a micro-batch, no ZeRO where nothing is split, no schedule of one rank."""
    one = GridPlan(8, d=2, p=4, k=4, zero=1, schedule="zb-h1", stages="search")
    found = [n for n in SPACE.neighbours(one) if isinstance(n, GridPlan)]
    alone = [n for n in found if n.d * n.e == 1]
    assert alone and all(not n.zero for n in alone)
    space = replace(SPACE, e=(1, 2))
    flat = list(space.neighbours(GridPlan(8, d=4, p=2, k=2, schedule="zb-h1")))
    assert all(n.p > 1 or not (n.schedule or n.stages) for n in flat)
    assert all(n.batch % (n.batch_parts * n.k) == 0 for n in found if n.k == 8)


def test_frugal_plans_split_experts() -> None:
    """They divide the parameters like tensors and stages; micro-batches have one sample."""
    space = replace(SPACE, batches=(24,))
    found = list(space.frugal((24,), lambda plan: isinstance(plan, GridPlan)))
    assert {n.e for n in found} == {1, 2}
    assert {n.t * n.p * n.e for n in found} == {1, 2}
    assert {n.batch // (n.batch_parts * n.k) for n in found} == {1}
    assert [n.t + max(n.t, n.p, n.e) for n in found] == [2, 3, 3, 4]
    assert all(n.t == 1 for n in replace(space, node=1).frugal((24,), lambda _: True))
    surest = space.surest((24,), lambda plan: True)
    assert (surest[0].t, surest[0].p, surest[0].e) == (1, 1, 8)


FOLDED = replace(SPACE, expert_axes=("e", "ec", "et", "ect"), next_c=(1, 2))


def axes(plan: GridPlan) -> set[tuple[str, bool]]:
    """The axes of experts of neighbours, and whether they split sequences over t."""
    found = [n for n in FOLDED.neighbours(plan) if isinstance(n, GridPlan)]
    for each in found:
        sizes = {"e": 2, "c": each.c, "t": each.t}
        assert all(sizes[axis] > 1 for axis in each.expert_axes)
        assert each.devices == 8
    return {(n.expert_axes, n.sequence_parallel) for n in found}


def test_experts_over_the_devices_of_attention() -> None:
    """
    Each device has tokens of its own; axes of size 1 are left out. Over "e" alone, sequences
    may be split over "t" or not.
    """
    plan = GridPlan(64, d=1, e=2, t=2, p=2, k=4, zero=1)
    assert axes(plan) == {("e", False), ("e", True), ("et", True)}
    folded = replace(plan, expert_axes="et", sequence_parallel=True)
    assert axes(folded) == {("e", False), ("et", True)}
    assert axes(PLAN) == {("e", False)}
    assert axes(replace(PLAN, d=1, c=2)) == {("e", False), ("ec", False)}


def test_grids_try_the_axes_that_plans_have() -> None:
    grid = Space((8,), True, 4, e=(2,), expert_axes=("e", "et"), zero=(1,))
    found = {(n.t, n.expert_axes, n.sequence_parallel) for n in grid.plans()}
    assert found == {(1, "e", False), (2, "e", False), (2, "et", True)}
