"""Lightning gives on several ranks what it gives on one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.ranks import run_ranks
from support.thoroughness import sampled

pytest.importorskip("lightning")

from support import lightning_runs as runs
from support.trainer_models import apart


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results on one process."""
    return run_ranks(1, runs.trained_plainly, tmp_path_factory.mktemp("plain"))[0]


@pytest.mark.parametrize(
    ("options", "size"),
    sampled([(dict(t=2), 2), (dict(d=2, t=2), 4), (dict(d=2, zero=3), 2)], 3),
    ids=str,
)
def test_a_training(plain: Any, options: Any, size: int, tmp_path: Path) -> None:
    """Two epochs in the order of one process, with accumulation, clipping and evaluations."""
    for rank in run_ranks(size, runs.trained, tmp_path, options):
        assert rank["losses"] == pytest.approx(plain["losses"], rel=1e-9)
        assert rank["norms"] == pytest.approx(plain["norms"], rel=1e-9)
        assert rank["validation"] == pytest.approx(plain["validation"], rel=1e-6)
        assert apart(rank["values"], plain["values"]) < 1e-9


def test_a_training_goes_on_under_another_plan(tmp_path: Path) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    whole, _ = run_ranks(2, runs.trained, first, dict(d=2, zero=3), False)
    half = first / "epochepoch=0.ckpt"
    for rank in run_ranks(2, runs.trained, other, dict(t=2), False, half):
        count = len(whole["losses"]) // 2
        assert rank["losses"] == pytest.approx(whole["losses"][count:], rel=1e-9)
        assert apart(rank["values"], whole["values"]) < 1e-9


def test_messages(tmp_path: Path) -> None:
    for found in run_ranks(2, runs.refused, tmp_path):
        assert "take '32-true' or 'bf16-mixed'" in found["precision"]
        assert "sync_batchnorm=True" in found["sync_batchnorm"]
        assert "there is no parallel module" in found["plain"]
