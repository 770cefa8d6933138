"""Calls of parallel modules give PyTorch's numbers whatever they are given."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from support.parallel_inputs import (
    LOSSES,
    aliased_run,
    contained_run,
    frozen_and_not,
    labelled_run,
    padded_run,
    prompted_run,
    swapped_run,
    told_run,
)
from support.ranks import run_ranks
from support.thoroughness import IS_THOROUGH, sampled


def ranks_of(options: dict[str, Any]) -> int:
    """The number of processes of a plan."""
    return prod(options.get(axis, 1) for axis in "rdctp")


@pytest.mark.parametrize("options", sampled([dict(d=2), dict(t=2)], 2), ids=str)
def test_one_tensor_at_several_places(options: dict[str, Any]) -> None:
    for rank in run_ranks(2, aliased_run, options):
        for found, expected in rank:
            assert found == pytest.approx(expected, rel=1e-5)


def test_named_arguments_in_another_order() -> None:
    ((found, expected),) = run_ranks(1, swapped_run)
    assert found == pytest.approx(expected, rel=1e-5)


QUICK = (dict(d=2, zero=3), dict(p=2, k=2))
PLANS: list[dict[str, Any]] = [
    *QUICK,
    dict(p=2, d=2, k=2),
    dict(),
    dict(d=2, t=2, zero=1),
    dict(r=2, d=2, zero=3),
    dict(d=2, k=2, zero=2),
    dict(p=2, t=2, k=2, schedule="zb-h1"),
]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            plan, id=str(plan), marks=[] if plan in QUICK else pytest.mark.slow
        )
        for plan in PLANS
    ],
)
def test_what_is_frozen_may_change(options: dict[str, Any]) -> None:
    """The gradients are those of what requires them in each call, inputs too."""
    for rank in run_ranks(ranks_of(options), frozen_and_not, options):
        for found, expected, worst in rank:
            assert found == pytest.approx(expected, rel=1e-5)
            assert worst < 1e-6


@pytest.mark.parametrize("options", sampled([dict(t=2), dict(d=2, zero=1)], 2), ids=str)
def test_prompts_and_encoders(options: dict[str, Any]) -> None:
    for rank in run_ranks(2, prompted_run, options):
        assert rank["encoder"] < 1e-6
        assert rank["prompt"] < 1e-6


PADDED: list[dict[str, int]] = [dict(d=2), dict(p=2, k=2)]
if IS_THOROUGH:
    PADDED.append(dict(d=2, t=2))


@pytest.mark.parametrize("name", sampled(list(LOSSES), 4))
def test_labels_that_do_not_count(name: str) -> None:
    for options in PADDED:
        for found, expected, worst in run_ranks(
            ranks_of(options), padded_run, name, options
        ):
            assert found == pytest.approx(expected, rel=1e-5)
            assert worst < 1e-6


def test_labels_of_any_structure() -> None:
    for rank in run_ranks(2, labelled_run, dict(d=2)):
        for found, expected, worst in rank:
            assert found == pytest.approx(expected, rel=1e-5)
            assert worst < 1e-6


def test_errors_speak_of_arguments() -> None:
    (told,) = run_ranks(1, told_run)
    structure, scalar, useless, degree, sequences, backward = told
    assert "the labels are a tensor, but" in structure
    assert "(a tensor, a tensor)" in structure and "labels=..." in structure
    assert "(labels=...)" in scalar
    assert "leave labels out" in useless
    assert "choose a larger d=" in degree
    assert "choose a larger t=" in sequences
    assert "call it in train()" in backward


def test_lists_of_layers_are_lists() -> None:
    (rank,) = run_ranks(1, contained_run, {})
    assert rank["is a list"] and rank["count"] == 4
    assert rank["last"] == ["weight", "bias"] and rank["each"] == [2] * 4
    assert rank["names"] == rank["all names"]
    stages = [rank["each"] for rank in run_ranks(2, contained_run, dict(p=2))]
    assert [sum(both) for both in zip(*stages, strict=True)] == [2] * 4
    assert all(0 in stage and 2 in stage for stage in stages)
