"""Plans whose parameters and states alone are too large are left out of a search."""

from __future__ import annotations

import pytest
from support.cost_programs import cluster
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.frontends.models.basic import build_mlp
from distir.passes.differentiate import DifferentiatePass
from distir.planning.grid.search import GridSearch
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.result import Result


def step() -> ModuleOp:
    module = build_mlp(2, 64, batch=8)
    DifferentiatePass(optimizer="adam").apply(Context(), module)
    return module


def search(memory: int) -> GridSearch:
    machine = cluster(4, levels=((4, 1e9, 1e-6),), memory=memory)
    options = SearchOptions(zero=(0, 1, 3), jobs=1)
    degrees = [(1, 4, 1), (2, 2, 1), (4, 1, 1)]
    return GridSearch([step()], machine, options, degrees=degrees)


@pytest.mark.parametrize("memory", [50_000, 90_000])
def test_only_plans_that_do_not_fit_are_left_out(memory: int) -> None:
    every, some = search(memory), search(memory)
    some.leave_out_too_large()
    every.run()
    some.run()
    left: list[Result] = [r for p, r in every.results.items() if p not in some.results]
    assert left and not any(result.fits for result in left)
    assert some.outcomes().ranked == every.outcomes().ranked


def test_those_that_need_the_least_stay() -> None:
    """Their results say how much memory is missing."""
    found = search(1_000)
    found.leave_out_too_large()
    assert found.plans
    found.run()
    assert found.best is None
