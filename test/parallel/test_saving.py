"""A parallel module is written as the source module would be."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import pytest
from support.parallel_saving import saved_after_a_step, saved_without_a_way
from support.ranks import run_ranks
from support.thoroughness import sampled

PLANS: list[dict[str, Any]] = [
    dict(p=2, k=2),
    dict(d=2, zero=3),
    dict(t=2),
    dict(d=2, p=2, k=2, zero=1),
]


@pytest.mark.parametrize("options", sampled(PLANS, 2), ids=str)
def test_transformers_read_it(options: dict[str, Any], tmp_path: Path) -> None:
    size = prod(options.get(axis, 1) for axis in "dtp")
    for found in run_ranks(size, saved_after_a_step, options, tmp_path / "saved"):
        assert found["state"] < 1e-5
        assert found["loaded"] < 1e-5


def test_what_has_no_way_to_be_saved() -> None:
    (message,) = run_ranks(1, saved_without_a_way)
    assert message.startswith("Linear has no save_pretrained")
