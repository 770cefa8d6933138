"""Layouts that the search chose, on real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cost_programs import cluster
from support.training_programs import on_processes, training_gpt, training_mlp
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_gpt
from distir.launch.packages import Spawner
from distir.passes.search_sharding import SearchShardingPass
from distir.planning.auto.auto import auto_search
from distir.planning.auto.results import emit
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.plan import LayoutPlan

PROGRAMS = {
    "forward": (
        lambda: build_gpt(layers=2, d_model=16, heads=4, vocab=32, batch=1, seq=8),
        ("t=4",),
        {},
    ),
    "training": (training_gpt, ("d=4",), {}),
    "two axes": (lambda: training_mlp(batch=16), ("d=2", "t=2"), {}),
    "a pipeline": (training_gpt, ("d=2",), {"p": 2, "k": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", PROGRAMS)
def test_searched_plans_run(case: str, spawner: Spawner, tmp_path: Path) -> None:
    """Work is dear and communication cheap, so that values are split."""
    build, axes, options = PROGRAMS[case]
    module: ModuleOp = build()
    found = module.clone()
    first = found.body.block.first_op
    assert first is not None
    on = cluster(4, levels=((4, 1e9, 1e-9),), peak=1e6, bandwidth=1e6)
    found.body.block.insert_op_before(on, first)
    SearchShardingPass(axes, **options).apply(Context(), found)  # type: ignore[arg-type]
    assert any("collective" in op.name for op in found.walk())
    on_processes(module, found, spawner, tmp_path)


def test_the_best_pipeline_runs(spawner: Spawner, tmp_path: Path) -> None:
    """What `auto-parallel` finds for pipelines of two ranks: with searched layouts."""
    module = training_mlp(batch=16)
    on = cluster(4, levels=((4, 1e9, 1e-9),), peak=1e6, bandwidth=1e6)
    search = auto_search(
        [module],
        on,
        SearchOptions(
            micro_batches=(4,),
            zero=(0,),
            checkpoint=("none",),
            schedules=("1f1b",),
            jobs=1,
        ),
        degrees=[(2, 1, 2)],
    )
    search.run()
    assert search.best is not None
    plan = search.best.plan
    assert isinstance(plan, LayoutPlan) and plan.p == 2 and plan.k == 4
    found = search.programs(plan.batch)
    promised = emit(found, search).step_time_s
    assert promised == search.best.step_time_s
    on_processes(module, found, spawner, tmp_path)
