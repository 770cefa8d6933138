"""A training script computes its losses from the outputs of parallel modules."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from support.parallel_outside import (
    TRAININGS,
    dropped,
    interrupted,
    last_batch,
    refused,
    statistics,
    stepped,
    trained,
)
from support.ranks import run_ranks
from support.thoroughness import chosen

PLANS: list[dict[str, Any]] = [
    dict(d=2),
    dict(t=2),
    dict(d=2, zero=3),
    dict(d=2, t=2, zero=1),
]
CASES = [(name, plan) for name in TRAININGS for plan in PLANS]
QUICK = [(name, PLANS[n % len(PLANS)]) for n, name in enumerate(TRAININGS)]

PIPELINES: list[dict[str, Any]] = [
    dict(p=2, d=2, k=2, zero=1),
    dict(p=2, k=4, schedule="zb-h1"),
    dict(p=2, k=1),
    dict(p=2, t=2, k=2),
    dict(d=2, k=2, zero=2),
    dict(),
]


def ranks_of(options: dict[str, Any]) -> int:
    """The number of processes of a plan."""
    return prod(options.get(axis, 1) for axis in "dtp")


def assert_same(found: dict[str, Any]) -> None:
    for loss, expected in found["losses"]:
        assert loss == pytest.approx(expected, rel=1e-9)
    assert found["apart"] < 1e-9


@pytest.mark.parametrize("name, options", chosen(CASES, QUICK), ids=str)
def test_losses_of_scripts(name: str, options: dict[str, Any]) -> None:
    """Several outputs, a GAN, a teacher, PPO, two towers, and prompts, as with PyTorch."""
    for rank in run_ranks(ranks_of(options), trained, name, options):
        assert_same(rank)


@pytest.mark.parametrize(
    "options", chosen([(p,) for p in PIPELINES], [(p,) for p in PIPELINES[:2]]), ids=str
)
def test_steps_with_a_loss(options: dict[str, Any]) -> None:
    """A loss of each micro-batch, on the last stage of a pipeline."""
    for rank in run_ranks(ranks_of(options), stepped, options):
        assert_same(rank)


def test_calls_that_are_no_step() -> None:
    for found in run_ranks(2, interrupted, dict(d=2)):
        assert found["without"] is False
        assert found["again"] == 0
        assert found["second"] == 4
        assert "a second time" in found["twice"]
        assert "'0.weight' was changed in place" in found["changed"]
        assert "create_graph=True" in found["higher"]
        assert "step(inputs, target=..., loss=...)" in found["loss"]


def test_what_a_loss_outside_does_not_go_with() -> None:
    (found,) = run_ranks(1, refused)
    assert "leave labels out" in found["labels"]
    assert 'check="import"' in found["check"]
    assert "choose bf16" in found["f16"]
    assert "call step(inputs" in found["outputs"]
    assert "does not consist of 2 parts" in found["penalty"]
    assert "mean_of_parts" in found["scalar"]


def test_a_last_batch_and_its_gradients() -> None:
    for rank in run_ranks(2, last_batch, dict(d=2)):
        for found, expected in rank:
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_running_statistics_and_masks() -> None:
    """The forward updates statistics; the backward draws the masks of its own forward."""
    for found in run_ranks(2, statistics, dict(d=2)):
        assert_same(found)
        assert found["mean"] < 1e-6  # the momentum of ONNX has 32 bits
        assert found["count"] == 5
    (difference,) = run_ranks(1, dropped, {})
    assert difference == 0
