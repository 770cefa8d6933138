"""transformers' trainer gives on several ranks what it gives on one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.ranks import run_ranks
from support.thoroughness import sampled

pytest.importorskip("accelerate")

from support import hugging_face_runs as runs
from support.trainer_models import Chain, CountedChain, apart

COUNTED = dict(gradient_accumulation_steps=2, num_train_epochs=1)
"""Two batches for a step, whose mean is over all their labels."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The results on one process."""
    folder = tmp_path_factory.mktemp("plain")
    return {
        kind: run_ranks(1, runs.trained_plainly, folder / kind.__name__, kind, more)[0]
        for kind, more in ((Chain, {}), (CountedChain, COUNTED))
    }


def check(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Losses are logged in f32; values are compared in f64."""
    for name in ("loss", "norm", "evaluated", "rate"):
        assert found[name] == pytest.approx(expected[name], rel=1e-6), name
    for name in ("eval_loss", "eval_accuracy", "eval_rows"):
        wanted = expected["metrics"][name]
        assert found["metrics"][name] == pytest.approx(wanted, rel=1e-9)
    assert apart(found["values"], expected["values"]) < 1e-9


@pytest.mark.parametrize(
    ("options", "size"),
    # ZeRO 3 is in the test of labels, in `make test`.
    sampled([(dict(d=2), 2), (dict(d=2, t=2, zero=3), 4), (dict(p=2, k=2), 2)], 3),
    ids=str,
)
def test_a_training(plain: Any, options: Any, size: int, tmp_path: Path) -> None:
    """Two epochs with a last batch of 6 of 8, clipping, a schedule, evaluations, checkpoints."""
    ranks = run_ranks(size, runs.trained, tmp_path, options, Chain, {}, None)
    for rank in ranks:
        check(rank, plain[Chain])
    assert (tmp_path / "checkpoint-3" / "model.safetensors").exists()
    assert (tmp_path / "saved" / "model.safetensors").exists()
    # Resumed from the middle, under another plan.
    half = str(tmp_path / "checkpoint-3")
    other = tmp_path / "resumed"
    for rank in run_ranks(2, runs.trained, other, dict(t=2), Chain, {}, half):
        check(rank, plain[Chain])


@pytest.mark.parametrize("options", sampled([dict(d=2, zero=3), dict(t=2)], 2), ids=str)
def test_a_mean_over_the_labels_of_several_batches(
    plain: Any, options: Any, tmp_path: Path
) -> None:
    """Labels that do not count are different ones in each batch."""
    for rank in run_ranks(
        2, runs.trained, tmp_path, options, CountedChain, COUNTED, None
    ):
        check(rank, plain[CountedChain])


def test_messages(tmp_path: Path) -> None:
    for found in run_ranks(2, runs.refused, tmp_path):
        assert "zero=3 of distir.parallelize" in found["fsdp"]
        assert 'checkpoint="full"' in found["gradient_checkpointing"]
        assert (
            "label_smoothing_factor of TrainingArguments"
            in found["label_smoothing_factor"]
        )
        assert "compiled=True" in found["torch_compile"]
        assert "the model is Linear, no parallel module" in found["plain"]
        assert "from distir.trainers import Trainer" in found["theirs"]
        assert "DistributedDataParallel would average" in found["ddp"]
        assert "cannot be converted to torch.float16" in found["type"]
