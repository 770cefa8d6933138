"""Packages with dialects and passes are found when they are installed, and looked for once."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest
from xdsl.universe import Universe

from distir.system.plugins import installed_universe

UNIVERSE = """
from xdsl.universe import Universe
MINE = Universe(all_passes={{"{name}": lambda: None}})
"""


def install(folder: Path, name: str) -> None:
    """Writes what pip would of a package with one pass, which has the package's name."""
    (folder / f"{name}.py").write_text(UNIVERSE.format(name=name))
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        f"[xdsl.universe]\n{name} = {name}:MINE\n"
    )
    # Two installations of a test may be closer than the ticks of a file system's clock.
    seconds = 1_000_000_000 + len(os.listdir(folder))
    os.utime(folder, (seconds, seconds))


def test_packages_are_found_when_they_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    before = set(installed_universe().all_passes)
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "first_of_two")
    assert set(installed_universe().all_passes) - before == {"first_of_two"}
    install(tmp_path, "second_of_two")
    added = set(installed_universe().all_passes) - before
    assert added == {"first_of_two", "second_of_two"}
    monkeypatch.undo()
    assert set(installed_universe().all_passes) == before


def test_packages_are_looked_for_once(monkeypatch: pytest.MonkeyPatch):
    first = installed_universe()

    def look(**parameters: str) -> None:
        pytest.fail(f"entry points are read again: {parameters}")

    monkeypatch.setattr(importlib.metadata, "entry_points", look)
    assert installed_universe() is first


def test_a_copy_that_is_not_installed_has_its_own_dialects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A source tree on `PYTHONPATH`, say: no entry point names DistIR."""
    found = installed_universe()
    others = Universe(all_dialects={"func": found.all_dialects["func"]})
    monkeypatch.setattr(Universe, "get_multiverse", lambda: others)
    monkeypatch.setattr(sys, "path", [*sys.path, "/nowhere/else"])
    alone = installed_universe()
    assert {"func", "dist", "onnx", "torch"} <= alone.all_dialects.keys()
    assert "distribute" in alone.all_passes and "torch" in alone.all_targets
