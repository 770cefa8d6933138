"""Parallel modules give PyTorch's numbers inside of `torch.autocast`."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from support.parallel_autocast import (
    divided_run,
    encoder_run,
    outputs_run,
    refused_run,
    scaled_run,
    some_ranks_run,
    steps_run,
    types_run,
    untrained_run,
)
from support.ranks import run_ranks
from support.thoroughness import sampled

QUICK = (dict(d=2, zero=3),)
"""`test_outputs` has a pipeline."""
PLANS: list[dict[str, Any]] = [
    *QUICK,
    dict(p=2, k=2),
    dict(),
    dict(t=2),
    dict(d=2, k=2, zero=2),
    dict(p=2, d=2, k=2),
]


def ranks_of(options: dict[str, Any]) -> int:
    """The number of processes of a plan."""
    return prod(options.get(axis, 1) for axis in "dtp")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            plan, id=str(plan), marks=[] if plan in QUICK else pytest.mark.slow
        )
        for plan in PLANS
    ],
)
def test_steps_inside_and_outside(options: dict[str, Any]) -> None:
    """
    Each step is PyTorch's in the types of that step. What is added up over ranks is rounded
    once more: biases over d, and over t what layers return.
    """
    ranks = run_ranks(ranks_of(options), steps_run, options)
    is_split = options.get("t", 1) > 1
    for index, steps in enumerate(zip(*ranks, strict=True)):
        is_inside = index % 2 == 0
        own, other = (sum(step[kind] for step in steps) for kind in ("own", "other"))
        most = 1e-6 if not is_inside else 1.5 if is_split else 0.7
        assert own < most * other
        for step in steps:
            assert step["type"] == (torch.float32, torch.float32)
            assert step["kinds"] == {torch.float32}
            rounding = 1e-3 if is_inside and is_split else 1e-6
            assert step["loss"] == pytest.approx(step["expected"], rel=rounding)


@pytest.mark.parametrize("options", sampled([dict(p=2), dict(d=2)], 2), ids=str)
def test_outputs(options: dict[str, Any]) -> None:
    for rank in run_ranks(ranks_of(options), outputs_run, options):
        types = [result["type"] for result in rank]
        assert types == [(t, t) for t in (torch.bfloat16, torch.float16, torch.float32)]
        for result, rounding in zip(rank, (2**-8, 2**-11, 2**-23), strict=True):
            assert result["apart"] <= 2 * rounding * result["largest"]


def test_it_is_not_what_dtype_does() -> None:
    """The lists of autocast give PyTorch's numbers; all in bf16 is no nearer than f32."""
    (found,) = run_ranks(1, types_run)
    assert found["autocast"] < 1e-3 * found["f32"] < found["dtype"]


@pytest.mark.slow  # test_inputs has encoders, test_outputs what autocast makes of inputs
@pytest.mark.parametrize("options", sampled([dict(t=2), dict(d=2)], 2), ids=str)
def test_encoders_in_front(options: dict[str, Any]) -> None:
    for rank in run_ranks(2, encoder_run, options):
        assert rank["encoded"] == torch.bfloat16
        assert rank["apart"] < 0.01


def test_training_without_gradients() -> None:
    ((found, expected),) = run_ranks(1, untrained_run)
    assert found == pytest.approx(expected, rel=1e-6)


def test_what_cannot_be() -> None:
    (found,) = run_ranks(1, refused_run)
    assert 'dtype="f16"' in found["f16"] and "inside of torch.autocast" in found["f16"]
    for kind, given, asked in (("other", "bf16", "f16"), ("wide", "f32", "bf16")):
        assert f'dtype="{given}" was given' in found[kind]
        assert f"asks for {asked}" in found[kind]
    assert 'check="step"' in found["check"] and "outside of it" in found["check"]
    assert found["same"] == found["after"] == "no error"


@pytest.mark.parametrize("options", sampled([dict(d=2, zero=1), dict(p=2)], 2), ids=str)
def test_f16_with_a_scaler_of_gradients(options: dict[str, Any]) -> None:
    for rank in run_ranks(2, scaled_run, options):
        for step in rank:
            assert step["loss"] == pytest.approx(step["expected"], rel=1e-3)
            assert step["apart"] < 1e-4
            assert any("loss_scale" in name for name in step["states"])


def test_ranks_that_differ() -> None:
    for training, evaluation, *together in run_ranks(2, some_ranks_run):
        for found in (training, evaluation):
            assert "torch.autocast is off on rank 0, bf16 on rank 1" in found
        assert together == ["no error"] * 2


def test_stages_begin_where_they_do_outside_of_autocast() -> None:
    """Alone, the program in 16 bits would have parameters on other stages."""
    owned: list[list[str]] = []
    for is_inside in (False, True):
        found = run_ranks(2, divided_run, is_inside)
        assert [rank["error"] for rank in found] == ["no error"] * 2
        owned.append(found[0]["own"])
    assert owned[0] != owned[1]
