"""How packages are made and found again when a script starts, also on several machines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.parallel_source import failed_start
from support.ranks import run_ranks

ROOT = Path(__file__).parents[2]
START = ROOT / "bench/parallelize_start.py"


@pytest.mark.slow
def test_one_rank_of_two_machines_compiles_and_none_at_the_second_start() -> None:
    command = [sys.executable, str(START), "--agents", "2", "--layers", "1"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert told.returncode == 0, told.stderr
    first, second = re.findall(r"(\d+) ranks compiled", told.stdout)
    assert (first, second) == ("1", "0")


def test_other_ranks_are_told_why_the_first_one_fails() -> None:
    """In words; the text of a missing key would be that of an object of Python."""
    first, second = run_ranks(2, failed_start, "missing key")
    assert first[0] == "KeyError"
    assert second == (
        "DistIRError",
        "rank 0 failed: KeyError; its own traceback says where",
    )
    first, second = run_ranks(2, failed_start, "wrong value")
    assert first[0] == "ValueError" and "rank 0 failed: too large; " in second[1]


def test_every_process_finds_what_another_has_kept(tmp_path: Path) -> None:
    """Whatever the order of sets is, and whoever else refers to the constants of code."""
    script = tmp_path / "hashed_module.py"
    shutil.copyfile(ROOT / "test/support/hashed_module.py", script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    keys: list[list[str]] = []
    for seed in ("1", "2"):
        told = subprocess.run(
            [sys.executable, str(script)],
            env={**environment, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert told.returncode == 0, told.stderr
        keys.append(told.stdout.split())
    assert keys[0] == keys[1] and "None" not in keys[0]
    key, with_references, with_another_element = keys[0]
    assert key == with_references != with_another_element
