"""Adapters of peft (LoRA) are trained, and nothing else is."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import pytest
from support.parallel_adapters import adapters_read, adapters_run, dropped_run
from support.ranks import run_ranks
from support.thoroughness import IS_THOROUGH


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param("llama", dict(d=2, zero=3), id="llama d2 zero 3"),
        pytest.param("gpt2", dict(), id="gpt2 one rank", marks=pytest.mark.slow),
        pytest.param(
            "llama",
            dict(d=2, t=2, zero=3),
            id="llama d2 t2 zero 3",
            marks=pytest.mark.slow,
        ),
        pytest.param("gpt2", dict(d=2, t=2), id="gpt2 d2 t2", marks=pytest.mark.slow),
        pytest.param("dora", dict(d=2, t=2), id="dora d2 t2", marks=pytest.mark.slow),
        pytest.param(
            "llama", dict(p=2, d=2, k=2), id="llama p2 d2", marks=pytest.mark.slow
        ),
    ],
)
def test_adapters_alone_are_trained(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    count = options.get("d", 1) * options.get("t", 1) * options.get("p", 1)
    ranks = run_ranks(count, adapters_run, kind, options, tmp_path / "checkpoint")
    assert set.union(*(rank["names"] for rank in ranks)) == ranks[0]["all names"]
    adapters = ranks[0]["graded"]
    assert len(adapters) == {"llama": 8, "gpt2": 4, "dora": 13}[kind]
    assert all(".default." in name for name in adapters)
    for rank in ranks:
        for found, expected in zip(rank["found"], rank["expected"], strict=True):
            assert found == pytest.approx(expected, rel=1e-4)
        assert rank["trained"] == adapters & rank["names"]
        assert rank["same"] == rank["names"] - adapters and len(rank["same"]) > 5
        assert rank["tied"] or kind != "llama" or "p" in options
        assert rank["parameters"] < 1e-5
    (loss,) = run_ranks(1, adapters_read, kind, tmp_path / "checkpoint")
    assert loss == pytest.approx(ranks[0]["loss"], rel=1e-5)
    assert loss != pytest.approx(ranks[0]["expected"][0][0], rel=1e-5)


def test_adapters_that_drop_some_of_their_inputs(tmp_path: Path) -> None:
    """What is dropped follows from the seed: one rank and several drop the same."""
    folder = tmp_path / "checkpoint"
    (alone,) = run_ranks(1, adapters_run, "llama", {}, folder, 0.5, 1)
    assert all(".lora_" in name for name in alone["trained"])
    assert alone["same"] == alone["names"] - alone["trained"]
    plan = dict(d=2, t=2) if IS_THOROUGH else dict(t=2)
    ranks = run_ranks(prod(plan.values()), dropped_run, "llama", plan)
    # At first the adapters add nothing, whatever they drop, but have other gradients.
    (loss, norm), (undropped_loss, undropped_norm) = (
        ranks[0]["found"][0],
        ranks[0]["undropped"],
    )
    assert loss == pytest.approx(undropped_loss, rel=1e-6)
    assert norm != pytest.approx(undropped_norm, rel=1e-2)
    for rank in ranks:
        expected = [pytest.approx(both, rel=1e-4) for both in alone["found"]]
        assert rank["found"] == expected
