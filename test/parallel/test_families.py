"""Models from Hugging Face's library, distributed by `distir.parallelize`, train as they are."""

from __future__ import annotations

from typing import Any

import pytest
from support.parallel_families import FAMILIES, dropped_t5_run, family_run
from support.ranks import run_ranks

PLANS: dict[str, dict[str, Any]] = {
    "d2 t2": dict(d=2, t=2),
    "d4 zero 1": dict(d=4, zero=1),
    "d4 zero 2": dict(d=4, zero=2),
    "d4 zero 3": dict(d=4, zero=3),
    "p2 d2": dict(p=2, d=2),
}


def assert_trains_as_pytorch_does(name: str, plan: str, steps: int) -> None:
    ranks = run_ranks(4, family_run, name, PLANS[plan], steps)
    assert set.union(*(rank["names"] for rank in ranks)) == ranks[0]["all names"]
    for rank in ranks:
        assert rank["found"] == pytest.approx(rank["expected"], rel=1e-4)
        assert rank["worst"][0] < 1e-4, rank["worst"]


@pytest.mark.slow  # launch/test_recurrent_run runs them
def test_recurrent_layers() -> None:
    assert_trains_as_pytorch_does("lstm", "d2 t2", 2)


def test_what_resizes_in_a_pipeline() -> None:
    assert_trains_as_pytorch_does("unet", "p2 d2", 2)


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str, plan: str) -> None:
    assert_trains_as_pytorch_does(name, plan, 10)


@pytest.mark.slow
@pytest.mark.parametrize("options", [dict(d=2, zero=3), dict(t=2)], ids=str)
def test_t5_with_dropout(options: dict[str, Any]) -> None:
    """Its layers of cross-attention become a loop over functions with attention in them."""
    (alone,) = run_ranks(1, dropped_t5_run, {})
    for losses in run_ranks(2, dropped_t5_run, options):
        assert losses == pytest.approx(alone, rel=1e-4)
