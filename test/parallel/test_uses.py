"""Parallel modules can be used as PyTorch's own modules are, by what PyTorch has for these."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.parallel_options import split_and_merged
from support.parallel_uses import (
    averaged_run,
    clipped_run,
    complex_run,
    copied_run,
    optimizer_run,
    orders,
    own_loss_run,
    seeded_run,
    settled_run,
    unlaunched_run,
    wide_run,
)
from support.ranks import run_ranks
from support.thoroughness import sampled


@pytest.mark.parametrize(
    "schedule", sampled([None, split_and_merged], 2), ids=["plain", "merged"]
)
def test_copies_train_by_themselves(schedule: Any) -> None:
    options = dict(d=2, zero=3) if schedule is None else dict(t=2, schedule=schedule)
    for rank in run_ranks(2, copied_run, options):
        assert rank["found"] == pytest.approx(rank["expected"], rel=1e-5)
        assert rank["found"][0] != pytest.approx(rank["found"][1], rel=1e-2)
        assert rank["parameters"] < 1e-5
        assert rank["changed"] == 0


@pytest.mark.parametrize("options", sampled([dict(d=2, zero=3), dict(p=2)], 2), ids=str)
def test_moving_averages_are_those_of_pytorch(options: dict[str, Any]) -> None:
    """A parameter that no op reads is averaged with the others, so it is a DTensor too."""
    for rank in run_ranks(2, averaged_run, options):
        assert rank["averages"] < 1e-5 and rank["trained"] < 1e-5
        assert rank["apart"] > 1e-3
        assert rank["output"] < 1e-5
        assert rank["classes"] == {"DTensor"}
        assert (rank["split"] > 0) == ("zero" in options)


def test_modules_that_return_their_loss() -> None:
    for rank in run_ranks(2, own_loss_run, dict(d=2)):
        assert rank["loss"] == pytest.approx(rank["expected"], rel=1e-5)
        assert rank["evaluated"] == pytest.approx(rank["expected"], rel=1e-5)
        assert rank["gradients"] < 1e-6


@pytest.mark.parametrize("options", sampled([dict(d=2, zero=3), dict(t=2)], 2), ids=str)
def test_clipping_is_that_of_pytorch(options: dict[str, Any]) -> None:
    for rank in run_ranks(2, clipped_run, options):
        assert rank["ours"] == pytest.approx(rank["theirs"], rel=1e-5)
        assert rank["theirs"] > 0.2
        assert rank["clipped"] == pytest.approx(0.1, rel=1e-4)
        for order in ("1.0", "3.0", "inf"):
            found = rank[f"theirs {order}"]
            assert rank[f"ours {order}"] == pytest.approx(found, rel=1e-4)


def test_the_seed_draws_the_values_of_modules_without_values() -> None:
    first, again = run_ranks(2, seeded_run, 3)
    (other, _) = run_ranks(2, seeded_run, 4)
    name = "towers.block.query.weight"
    assert "unread" in first and first.keys() == other.keys()
    assert first == again
    assert first[name] != other[name]


def test_parts_in_evaluation_mode_stay_so() -> None:
    for rank in run_ranks(2, settled_run, dict(d=2)):
        for name in ("loss", "spelled out", "named"):
            assert rank[name] == pytest.approx(rank["expected"], rel=1e-5)
        assert rank["changed"] == 0


def test_orders_of_samples() -> None:
    ((first, second, plain),) = run_ranks(1, orders)
    assert sorted(first) == sorted(second) == plain == list(range(12))
    assert first != second and plain not in (first, second)


@pytest.mark.slow  # test_optimizers tries all optimizers on two ranks
@pytest.mark.parametrize(
    ("name", "given"),
    sampled([("RMSprop", dict(momentum=0.9)), ("Adam", dict(fused=True))], 2),
    ids=["RMSprop", "fused Adam"],
)
def test_optimizers_of_pytorch(name: str, given: dict[str, Any]) -> None:
    for rank in run_ranks(4, optimizer_run, dict(d=2, t=2, zero=3), name, given):
        assert rank["split"]
        assert rank["found"] == pytest.approx(rank["expected"], rel=1e-5)
        assert rank["parameters"] < 1e-5


def test_one_process_needs_no_launcher() -> None:
    ((found, expected),) = run_ranks(1, unlaunched_run)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("options", sampled([dict(t=2), dict(d=2)], 2), ids=str)
def test_complex_buffers_stay_complex(options: dict[str, Any]) -> None:
    for rank in run_ranks(2, complex_run, options):
        assert rank["found"] == pytest.approx(rank["expected"], rel=1e-5)
        assert rank["expected"][0] != pytest.approx(rank["expected"][1], rel=1e-3)
        assert rank["type"] == torch.complex64
        assert rank["apart"] < 1e-6


def test_norms_of_f64_in_a_pipeline() -> None:
    for rank in run_ranks(2, wide_run, dict(p=2)):
        assert rank["norm"] == pytest.approx(rank["expected"], rel=1e-12)
        assert rank["types"] == {torch.float64}
