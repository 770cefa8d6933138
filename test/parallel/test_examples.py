"""The example of a training script prints the losses that PyTorch alone has."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "train_gpt2.py"


def losses(*command: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, *command, "--steps", "3"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]


@pytest.mark.slow
def test_a_training_script(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    run = ["-m", "torch.distributed.run", "--nproc-per-node", "4", str(SCRIPT)]
    plain = losses(str(SCRIPT), "--plain")
    assert len(plain) == 2
    assert losses(*run, "--save", str(folder)) == pytest.approx(plain, abs=2e-4)
    assert (folder / ".metadata").exists()
    pipeline = ("-d", "2", "-p", "2", "-k", "2", "--zero", "3")
    assert losses(*run, *pipeline) == pytest.approx(plain, abs=2e-4)


@pytest.mark.slow
def test_a_plan_from_a_configuration(tmp_path: Path) -> None:
    """A given plan of the smallest model; the search is that of other tests."""
    script = SCRIPT.with_name("plan_llama_70b.py")
    size = ("--model", "tiny", "--batch", "8", "--seq", "64", "--devices", "8")
    done = subprocess.run(
        [
            sys.executable,
            str(script),
            *size,
            "-d",
            "2",
            "-t",
            "2",
            "-p",
            "2",
            "-k",
            "4",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"imported \d", done.stdout)
    assert re.search(r"s a step, .* on the fullest of 8 devices", done.stdout)
