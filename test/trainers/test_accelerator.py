"""Training scripts of Accelerate give on several ranks what they give on one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.ranks import run_ranks
from support.thoroughness import chosen

pytest.importorskip("accelerate")

from support import accelerate_runs as runs
from support.trainer_models import apart

CASES: list[tuple[dict[str, Any], str]] = [
    (dict(d=2, zero=3), "shuffled"),
    (dict(p=2, k=2), "stream"),
    (dict(p=2, k=2), "shuffled"),
    (dict(d=2), "stream"),
    (dict(d=2), "shuffled"),
    (dict(t=2), "shuffled"),
    (dict(d=2, t=2, zero=1), "shuffled"),
]
"""Plans, and kinds of loaders; a state is loaded under t in `make test`."""


def _size(options: dict[str, Any]) -> int:
    return options.get("d", 1) * options.get("t", 1) * options.get("p", 1)


@pytest.fixture(scope="module")
def plain() -> Any:
    """The results on one process, for each kind of loader."""
    return {
        kind: run_ranks(1, runs.trained_plainly, kind)[0]
        for kind in ("shuffled", "stream")
    }


@pytest.mark.parametrize(("options", "kind"), chosen(CASES, CASES[:2]), ids=str)
def test_a_training_script(plain: Any, options: dict[str, Any], kind: str) -> None:
    """Accumulation, clipping, a schedule, a last batch of 3 of 8, and an evaluation."""
    expected = plain[kind]
    for rank in run_ranks(_size(options), runs.trained, options, kind):
        assert rank["losses"] == pytest.approx(expected["losses"], rel=1e-9)
        assert rank["norms"] == pytest.approx(expected["norms"], rel=1e-9)
        assert min(rank["norms"]) > 0.3  # each is clipped
        assert rank["rate"] == pytest.approx(expected["rate"], rel=1e-9)
        assert apart(rank["values"], expected["values"]) < 1e-9
        assert rank["guesses"].shape == expected["guesses"].shape
        assert np.abs(rank["guesses"] - expected["guesses"]).max() < 1e-9
        assert rank["total"] == rank["parts"]


def test_a_state_is_loaded_under_another_plan(tmp_path: Path) -> None:
    plans = dict(d=2, zero=3), dict(t=2)
    for first, again in run_ranks(2, runs.resumed, *plans, tmp_path / "state"):
        assert again == pytest.approx(first, rel=1e-9)


def test_mixed_precision_is_autocast() -> None:
    for found in run_ranks(2, runs.in_16_bits):
        assert found["prepared"] == found["autocast"] != found["f32"]
        assert found["prepared"] == pytest.approx(found["f32"], rel=0.01)


def test_messages() -> None:
    for found in run_ranks(2, runs.refused):
        assert 'dtype="f16" to distir.parallelize' in found["fp16"]
        assert "from distir.trainers import Accelerator" in found["theirs"]
        assert "there is no parallel module" in found["data first"]
        assert "Linear is no parallel module" in found["module"]
        assert "split_batches=True" in found["split"]
        assert "DistributedSampler" in found["sampler"]
        assert "'input_ids' has other values on rank 1 than on rank 0" in found["apart"]
        assert "has other values on rank 1 than" in found["apart in floats"]
