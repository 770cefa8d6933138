"""All programs of a module keep its parameters on the pipeline stages of the first one."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from support.parallel_stages import trained_with_lengths
from support.ranks import run_ranks
from support.thoroughness import chosen

PLANS: list[dict[str, Any]] = [
    dict(p=2, k=2),
    dict(p=2, k=2, schedule="interleaved-1f1b"),
    dict(p=2, k=2, stages=["mixing.3"]),
    dict(p=2, k=2, stages=["search"]),
    dict(p=2, d=2, k=2, zero=2),
    dict(d=2, zero=3),
    dict(t=2, zero=0),
]


@pytest.mark.parametrize("options", chosen(PLANS, PLANS[:1]), ids=str)
def test_parameters_stay_where_they_are(options: dict[str, Any]) -> None:
    """Training and evaluation with lengths whose stages of equal work begin elsewhere."""
    size = prod(options.get(axis, 1) for axis in "dtp")
    for rank in run_ranks(size, trained_with_lengths, options, [4, 64], 8):
        for found, expected in rank["losses"]:
            assert found == pytest.approx(expected, rel=1e-9)
        assert rank["outputs"] < 1e-12 and rank["apart"] < 1e-9
        assert rank["moved"] == []


@pytest.mark.slow
def test_stages_that_evaluation_cannot_have() -> None:
    """The stages of `zbv` go back and forth; those of an evaluation get their parameters."""
    options = dict(p=2, k=2, schedule="zbv")
    for rank in run_ranks(2, trained_with_lengths, options, [4, 16], 8):
        for found, expected in rank["losses"]:
            assert found == pytest.approx(expected, rel=1e-9)
        assert rank["outputs"] < 1e-12 and rank["apart"] < 1e-9
        assert rank["moved"]
