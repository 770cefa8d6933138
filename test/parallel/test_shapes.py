"""A parallel module takes batches of other shapes than its example, as PyTorch's would."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from support.parallel_shapes import (
    announced_shapes,
    evaluated_without_dropout,
    one_whole_batch,
    plain_criterion,
    refused_batches,
    trained_with_shapes,
)
from support.ranks import run_ranks
from support.thoroughness import IS_THOROUGH, chosen, sampled

PLANS: list[dict[str, Any]] = [
    dict(d=2, zero=3, k=2),
    dict(p=2, k=2),
    dict(t=2),
    dict(d=2),
    dict(d=2, t=2),
]
MORE = [(8, 10), (5, 6)] if IS_THOROUGH else []


@pytest.mark.parametrize("options", chosen(PLANS, PLANS[:2]), ids=str)
def test_last_batches_and_lengths(options: dict[str, Any]) -> None:
    """
    A last batch of 3 of 8, other lengths, and evaluation on another batch: in `make test` one
    by one under the first plan, both at once under others.
    """
    shapes = [(8, 6), *MORE, (8, 6), (4, 10), (3, 6)]
    if not IS_THOROUGH and options != PLANS[0]:
        shapes = [(8, 6), (3, 10)]
    size = prod(options.get(axis, 1) for axis in "dtp")
    for rank in run_ranks(size, trained_with_shapes, options, shapes):
        for found, expected in rank["losses"] + rank["evaluated"]:
            assert found == pytest.approx(expected, rel=1e-9)
        assert rank["apart"] < 1e-9
        assert rank["outputs"] < 1e-12


def test_a_loss_of_ones_own() -> None:
    """Labels that a function takes have the shape of the batch."""
    shapes = [(8, 6), (3, 6), (4, 9)] if IS_THOROUGH else [(8, 6), (3, 9)]
    for rank in run_ranks(2, trained_with_shapes, dict(d=2), shapes, plain_criterion):
        for found, expected in rank["losses"] + rank["evaluated"]:
            assert found == pytest.approx(expected, rel=1e-9)
        assert rank["apart"] < 1e-9


def test_batches_that_cannot_be_taken() -> None:
    """Ranks that were given different shapes do not wait for each other."""
    for found in run_ranks(2, refused_batches, dict(d=2)):
        assert "[4, 6] on rank 0, but [4, 5] on rank 1" in found["lengths"]
        assert "padded to one length" in found["lengths"]
        assert "takes [4, 6], its part of a batch of 8" in found["whole"]
        assert "'labels' has 3 samples on rank 1" in found["labels"]
        assert "has 1 dimensions on rank 0" in found["dimensions"]
        assert "called with 2 shapes" in found["programs"]
        assert (
            "input0 [4, 4]" in found["programs"] or "words [4, 4]" in found["programs"]
        )
        assert "max_programs" in found["programs"]
        assert "loss of Sum is no mean over samples" in found["sum"]
        assert "drop_last=True" in found["sum"]
        assert "loss of Sum is no mean over samples" in found["sum in evaluation"]
        assert "is of all samples together" in found["together"]
        assert "batch normalisation" in found["statistics"]


def test_one_rank_with_as_many_samples_as_the_example() -> None:
    """Ranks decide by the shapes of all of them, lest one waits for another."""
    for found, expected in run_ranks(2, one_whole_batch, dict(d=2)):
        assert found == pytest.approx(expected, rel=1e-9)


def test_shapes_that_are_announced() -> None:
    for found in run_ranks(2, announced_shapes, dict(d=2)):
        assert found["made"] == found["after"] == 4
        for loss, expected in found["losses"]:
            assert loss == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("options", sampled([dict(d=2), dict(t=2)], 2), ids=str)
def test_validation_has_no_dropout(options: dict[str, Any]) -> None:
    for rank in run_ranks(2, evaluated_without_dropout, options):
        for found, expected in rank:
            assert found == pytest.approx(expected, rel=1e-5)
