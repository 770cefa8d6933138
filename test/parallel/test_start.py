"""How packages are made and found again when a script starts, also on several machines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

START = Path(__file__).parents[2] / "bench/parallelize_start.py"


@pytest.mark.slow
def test_one_rank_of_two_machines_compiles_and_none_at_the_second_start() -> None:
    command = [sys.executable, str(START), "--agents", "2", "--layers", "1"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert told.returncode == 0, told.stderr
    first, second = re.findall(r"(\d+) ranks compiled", told.stdout)
    assert (first, second) == ("1", "0")
