"""Python functions have the options of the commands that do more than return a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.command_line import succeed

import distir

MLP: dict[str, Any] = dict(layers=2, d_model=16, batch=8)
SPLIT: dict[str, Any] = dict(cluster="cpu", d=2, t=2)


def test_a_package_evaluates_and_is_compiled_as_by_the_command(tmp_path: Path) -> None:
    path, theirs, ours = (tmp_path / n for n in ("d.mlir", "a", "b"))
    distir.distribute(distir.build("mlp", **MLP, training=True), **SPLIT).save(path)
    succeed("lower", path, "-o", theirs, "--evaluation", "--compile")
    made = distir.lower(path, ours, evaluation=True, compile=True)
    texts = [
        {f.relative_to(folder): f.read_bytes() for f in folder.rglob("*.*")}
        for folder in (theirs, ours)
    ]
    assert texts[0] == texts[1] and Path("program.py") in texts[0]
    plain = distir.lower(path, tmp_path / "c")
    assert len(list(plain.folder.rglob("*.*"))) < len(texts[0])
    assert plain.memory == made.memory == ()


def test_the_memory_of_a_package_is_counted(tmp_path: Path) -> None:
    program = distir.distribute(distir.build("mlp", **MLP), **SPLIT)
    made = distir.lower(program, tmp_path / "package", check_memory=True)
    simulated = distir.simulate(program)
    (found,) = made.memory
    assert found.ranks == (0, 1, 2, 3)
    assert found.simulated == simulated.memory_bytes
    assert 0.5 < found.counted / found.simulated < 2


def test_a_difference_is_that_of_the_command(tmp_path: Path) -> None:
    first, second, theirs, ours = (
        tmp_path / n for n in ("a.mlir", "b.mlir", "a.json", "b.json")
    )
    program = distir.build("mlp", **MLP)
    distir.distribute(program, **SPLIT).save(first)
    distir.distribute(program, cluster="cpu", d=4).save(second)
    printed = succeed("simulate", "--diff", first, second, "--json", theirs).output
    found = distir.simulate(first).difference(distir.simulate(second))
    found.save(ours)
    assert ours.read_text() == theirs.read_text()
    assert "a.mlir" in str(found) and "difference" in found._repr_html_()  # pyright: ignore[reportPrivateUsage]
    lines = [" ".join(line.split()) for line in str(found).splitlines()]
    assert lines[1:2] == [" ".join(line.split()) for line in printed.splitlines()[1:2]]
    longer = distir.simulate(second).step_time_s - distir.simulate(first).step_time_s
    assert found.step_time_s == pytest.approx(longer)
    assert json.loads(ours.read_text())
