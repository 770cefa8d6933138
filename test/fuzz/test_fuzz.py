"""A round or a few of each fuzzer, always the same ones: `make fuzz` makes others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.thoroughness import IS_THOROUGH

TESTS = Path(__file__).parent.parent
ROUNDS = {
    "layouts": 8,
    "training": 6,
    "mutants": 4,
    "operators": 10,
    "options": 2,
    "files": 10,
}


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs fuzzers in a process of their own, which has made no threads."""
    paths = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-m", "fuzz", "--jobs", "1", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=900,
    )


def test_nothing_is_found() -> None:
    """A sixth of a round of each, in one process, which takes long to start."""
    part = "1" if IS_THOROUGH else "6"
    done = fuzz("--seed", "0", "--rounds", "1", "--part", part)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ROUNDS)
def test_nothing_is_found_in_more_rounds(name: str) -> None:
    done = fuzz("--only", name, "--seed", "0", "--rounds", str(ROUNDS[name]))
    assert done.returncode == 0, done.stdout + done.stderr


def test_programs_are_of_a_hundred_ops() -> None:
    from fuzz.catalogue import op_names

    assert len(op_names()) >= 100
