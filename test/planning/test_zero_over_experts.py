"""ZeRO over the axis of experts: what is no expert is copied along it, and split over it too."""

from __future__ import annotations

import functools
from math import prod
from typing import Any

import pytest
from support.pipelines import assert_same, distributed
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import layout_of
from distir.dialects.tensors import shape_of
from distir.frontends.models.basic import build_moe
from distir.passes.differentiate import DifferentiatePass
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.plan import Space
from distir.program import argument_names, argument_roles, entry_function
from distir.sharding.layout import local_shape
from distir.sharding.mesh import only_mesh


@functools.cache
def step(clip: float = 0.1) -> ModuleOp:
    """The training step of a GPT with four experts; 3 divides few of its sizes."""
    module = build_moe(2, 16, 2, 4, 32, 24, 4)
    DifferentiatePass(clip=clip).apply(Context(), module)
    return module


def split_over(module: ModuleOp, role: str) -> dict[str, set[str]]:
    """The axes over which the arguments of a role are split, by name."""
    function = entry_function(module)
    arguments = function.body.block.args
    return {
        name: set(layout.split_axes)
        for name, own, argument in zip(
            argument_names(function), argument_roles(function), arguments, strict=True
        )
        if own == role and (layout := layout_of(argument)) and argument.uses
    }


def is_expert(name: str) -> bool:
    return ".experts." in name


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"d": 2, "e": 2, "zero": 1}, marks=pytest.mark.slow),
        {"d": 2, "e": 2, "zero": 2, "k": 2},
        {"d": 2, "e": 2, "zero": 3, "t": 2},
        {"d": 3, "e": 2, "zero": 3},
        pytest.param({"d": 1, "e": 4, "zero": 2}, marks=pytest.mark.slow),
        {"r": 2, "d": 1, "e": 2, "zero": 3},
    ],
    ids=lambda o: "-".join(f"{k}{v}" for k, v in o.items()),
)
def test_results_stay_and_states_are_split_over_both(options: dict[str, Any]) -> None:
    module = assert_same(step(), **options)
    both = {axis for axis in ("d", "e") if options[axis] > 1}
    states = split_over(module, "state")
    large = {n: axes for n, axes in states.items() if "exp_avg" in n}
    assert any(map(is_expert, large))
    for name, axes in large.items():
        assert both <= axes, name
    parameters = split_over(module, "parameter")
    for name, axes in parameters.items():
        if is_expert(name):
            assert "e" in axes, name
        else:
            assert both <= axes if options["zero"] == 3 else not both & axes, name


def test_a_device_holds_its_part_of_all_states() -> None:
    """12 P / (d e) bytes, of experts and of all else: an expert is on one device of e already."""
    module = distributed(step(0.0), d=2, e=2, zero=1)
    function, mesh = entry_function(module), only_mesh(module)
    roles = argument_roles(function)
    whole, held = 0, 0
    for argument, role in zip(function.body.block.args, roles, strict=True):
        if role == "state" and (shape := shape_of(argument.type)):
            layout = layout_of(argument)
            assert layout is not None
            whole += prod(shape)
            held += prod(local_shape(shape, layout, mesh))
    assert held == whole / 4


def test_the_grid_has_zero_without_data_parallelism() -> None:
    options = SearchOptions(e=(4,), zero=(1,), micro_batches=(1,))
    plans = Space.of(options, (16,), True, 4, [(1, 1, 1)]).plans()
    assert {(p.d, p.e, p.zero) for p in plans} == {(1, 4, 1)}
