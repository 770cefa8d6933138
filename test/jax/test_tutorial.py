"""The tutorial about JAX is followed: what it shows is what comes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("jaxlib")  # `jax` may be the name of this folder

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

from website.pages import follow  # noqa: E402


def test_the_tutorial_shows_what_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = list(follow(ROOT / "docs" / "tutorials" / "jax-step.md", tmp_path))
    assert len(shown) == 2
    for output in shown:
        assert output.is_right, (output.commands, output.got)
