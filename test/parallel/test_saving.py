"""A parallel module is written as the source module would be."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
from support.parallel_saving import (
    memory_of_writing,
    saved_after_a_step,
    saved_without_a_way,
    unwritable,
    written_experts,
)
from support.ranks import run_ranks
from support.thoroughness import sampled

PLANS: list[dict[str, Any]] = [
    dict(p=2, k=2),
    dict(d=2, zero=3),
    dict(t=2),
    dict(d=2, p=2, k=2, zero=1),
]


@pytest.mark.parametrize("options", sampled(PLANS, 4), ids=str)
def test_transformers_read_it(options: dict[str, Any], tmp_path: Path) -> None:
    size = prod(options.get(axis, 1) for axis in "dtp")
    for found in run_ranks(size, saved_after_a_step, options, tmp_path / "saved"):
        assert found["state"] < 1e-5
        assert found["loaded"] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("plan", [dict(e=2, d=1), dict(t=2), dict(p=2, k=2)], ids=str)
def test_experts_are_written_apart(plan: dict[str, Any], tmp_path: Path) -> None:
    assert run_ranks(2, written_experts, plan, tmp_path / "saved") == [0, 0]
    index = json.loads((tmp_path / "saved/model.safetensors.index.json").read_text())
    assert any("experts.3.w2" in name for name in index["weight_map"])


@pytest.mark.slow
@pytest.mark.parametrize("plan", [dict(d=2, zero=3), dict(t=2), dict(p=2)], ids=str)
def test_no_rank_holds_the_whole_model(plan: dict[str, Any], tmp_path: Path) -> None:
    """A rank has half of it, and needs less than a third more to write."""
    for found in run_ranks(2, memory_of_writing, plan, tmp_path / "saved"):
        assert found["all"] > 56
        assert found["largest"] < 4.1
        assert found["files"] > 10
        assert found["peak"] < found["all"] / 3, found
        assert found["apart"] == 0


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "saved").write_text("")
    for message in run_ranks(2, unwritable, tmp_path / "saved"):
        assert "saved is a file" in message


def test_what_has_no_way_to_be_saved() -> None:
    (message,) = run_ranks(1, saved_without_a_way)
    assert message.startswith("Linear has no save_pretrained")
