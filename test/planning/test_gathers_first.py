"""
Under overlap the parameters that ZeRO's stages 1 and 2 update in parts are brought together in
front of the next step's forward, beside what it computes, instead of behind the updates.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
from closed_forms.towers import bytes_sent, distributed, on_each_device
from support import pipelines
from support.thoroughness import chosen, sampled
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.dist import layout_of
from distir.frontends.models.basic import build_gpt
from distir.interpreters.reference import run_program
from distir.interpreters.simulator import simulate
from distir.passes.differentiate import DifferentiatePass
from distir.planning.grid import GridPlan
from distir.program import argument_names, entry_function

TIED = "transformer.wte.weight"


@functools.cache
def step(dtype: str = "f32", layers: int = 2, width: int = 16) -> ModuleOp:
    """The training step of a GPT."""
    module = build_gpt(layers, width, 4, 8 * width, 8, 32, dtype)
    DifferentiatePass(clip=0.5).apply(Context(), module)
    return module


def is_stored_split(module: ModuleOp) -> bool:
    """Whether devices keep parts of the embedding from step to step."""
    function = entry_function(module)
    layout = layout_of(function.args[argument_names(function).index(TIED)])
    return layout is not None and "d" in layout.split_axes


@pytest.mark.parametrize(
    "options",
    sampled(
        [
            {"d": 4, "zero": 1},
            {"d": 2, "t": 2, "zero": 2, "sequence_parallel": True},
            {"d": 4, "zero": 1, "checkpoint": "full"},
        ],
        2,
    ),
)
def test_results_stay(options: dict[str, Any]) -> None:
    module = step()
    arguments = pipelines.arguments_of(module)
    split = pipelines.distributed(module, **options, overlap=True)
    assert is_stored_split(split)
    results = run_program(split, arguments)
    pipelines.assert_equal_results(module, run_program(module, arguments), results)


def test_not_with_micro_batches() -> None:
    """Each of them would gather all parameters again."""
    module = step()
    arguments = pipelines.arguments_of(module)
    split = pipelines.distributed(module, d=2, p=2, k=2, zero=1, overlap=True)
    assert not is_stored_split(split)
    results = run_program(split, arguments)
    pipelines.assert_equal_results(module, run_program(module, arguments), results)


def test_only_where_gatherings_of_parameters_overlap() -> None:
    for more in ({}, {"overlap": True, "overlapped": ("dp",)}):
        split = pipelines.distributed(step(), d=4, zero=1, **more)
        assert not is_stored_split(split)


@pytest.mark.parametrize("zero", chosen([1, 2], [1]))
def test_it_is_faster_and_sends_as_much(zero: int) -> None:
    module = step("bf16", 8, 512)
    gradients = distributed(
        module.clone(), d=8, zero=zero, overlap=True, overlapped=("dp",)
    )
    both = distributed(module.clone(), d=8, zero=zero, overlap=True)
    assert simulate(both).step_time_s < 0.99 * simulate(gradients).step_time_s
    sent = on_each_device(bytes_sent, gradients)
    assert on_each_device(bytes_sent, both) == pytest.approx(sent, rel=1e-3)


def test_what_is_flat_is_sent_once() -> None:
    """On three devices: parameters that are updated flat stay whole from step to step."""
    module = build_gpt(2, 64, 4, 128, 6, 32, "bf16")
    DifferentiatePass().apply(Context(), module)
    plain, late = (
        distributed(module.clone(), d=3, zero=1, overlap=overlap)
        for overlap in (False, True)
    )
    sent = on_each_device(bytes_sent, plain)
    assert on_each_device(bytes_sent, late) == pytest.approx(sent, rel=1e-3)


def test_plans_with_and_without_overlap_have_layouts_of_their_own() -> None:
    plans = [GridPlan(8, d=4, zero=zero, overlap=o) for zero in (1, 3) for o in (0, 1)]
    first, late, third, other = (plan.shared for plan in plans)
    assert first != late and third == other
