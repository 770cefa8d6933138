"""Sequences that are split over real processes: the same training as on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.training_programs import batches, package, training_gpt

from distir.launch.packages import Spawner, Training, run_package

CASES: dict[str, dict[str, Any]] = {
    "c4": {"c": 4},
    "c4-cyclic": {"c": 4, "context_order": "cyclic"},
    "d2-c2-t2-zero3": {"d": 2, "c": 2, "t": 2, "zero": 3},
    "c4-ring": {"c": 4, "context": "ring"},
    "c4-ring-cyclic": {"c": 4, "context": "ring", "context_order": "cyclic"},
    "c2-p2-ring": {"c": 2, "p": 2, "k": 2, "context": "ring"},
    "c2-p2": {"c": 2, "p": 2, "k": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_training(case: str, tmp_path: Path, spawner: Spawner) -> None:
    """In `make test` ranks train with a split sequence in parallel/test_parallelize.py."""
    module = training_gpt()
    inputs = batches(module)

    def run(name: str, **options: Any) -> dict[str, Any]:
        made = package(module, tmp_path / name, **options)
        return run_package(made, inputs=inputs, spawner=spawner, training=Training(2))

    expected, actual = run("one"), run(case, **CASES[case])
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-5)
