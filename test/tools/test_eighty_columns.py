"""Tables of the commands fit a terminal of 80 columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.command_line import succeed, write_program

from distir.tools.reports import reporting

WIDE = "transformer.layers.11.self_attention.query_key_value.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sequential program, and two distributions of it."""
    folder = tmp_path_factory.mktemp("programs")
    model = write_program(folder / "model.mlir")
    text = model.read_text().replace("l1.weight", WIDE)
    model.write_text(text)
    for name, degrees in (("dist", "-d2 -t2"), ("other", "-d4")):
        out = folder / f"{name}.mlir"
        to = ("--cluster", "dgx2", *degrees.split(), "-o", out)
        succeed("distribute", model, *to)
    return folder


COMMANDS = (
    "show dist.mlir",
    "simulate dist.mlir --memory",
    "simulate --diff dist.mlir other.mlir",
    "search model.mlir --cluster dgx2 --devices 4 --jobs 1",
    "check model.mlir dist.mlir",
    "doctor",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_tables(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(folder)
    output = succeed(*command.split()).output
    rows = [
        line
        for line in output.splitlines()
        if re.search(r"\S {2,}\S", line) or set(line) == {"─"}
    ]
    assert len(rows) >= 2
    assert [line for line in rows if len(line) > 80] == []


def test_a_table_that_is_too_wide_is_split(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    headings = ["name", *(f"a heading {i}" for i in range(12))]
    reporting.table(headings, [[WIDE, *(f"{10**i} bytes" for i in range(12))]])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert all(f"{10**i} bytes" in printed for i in range(12))
    assert printed.count("name") > 1
