"""Tables of the commands fit 80 columns, in a terminal and in a pipe."""

from __future__ import annotations

import os
import re
from io import StringIO
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
    (folder / "asked.py").write_text(
        "def schedule(s):\n"
        "    s.knob('share_of_the_layers', [0.25, 0.5, 0.75])\n"
        "    s.knob('another_long_name', [1, 2])\n"
    )
    return folder


COMMANDS = (
    "show dist.mlir",
    "simulate dist.mlir --memory",
    "simulate --diff dist.mlir other.mlir",
    "search model.mlir --cluster dgx2 --devices 4 --jobs 1",
    "check model.mlir dist.mlir",
    "lower dist.mlir -o package --check-memory",
    "schedule model.mlir asked.py --tune exhaustive --cluster dgx2 --world-size 2 -o o.mlir",
    "doctor",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_tables(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "COLUMNS" not in os.environ  # as in a pipe of most users
    monkeypatch.chdir(folder)
    output = succeed(*command.split()).output
    rows = [
        line
        for line in output.splitlines()
        if re.search(r"\S {2,}\S", line) or set(line) == {"─"}
    ]
    assert len(rows) >= 2
    assert [line for line in rows if len(line) > 80] == []


class Terminal(StringIO):
    """A file that says that it is a terminal, one without colours."""

    def isatty(self) -> bool:
        return True


def shown(file: StringIO) -> str:
    """A table with many columns, as it is printed to `file`."""
    headings = ["name", *(f"a heading {i}" for i in range(12))]
    row = [WIDE, *(f"{10**i} bytes" for i in range(12))]
    reporting.table(headings, [row], file)
    return re.sub("\x1b\\[[0-9;]*m", "", file.getvalue())


def test_a_table_that_is_too_wide_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = shown(StringIO())
    assert 60 < max(map(len, piped.splitlines())) <= 80
    assert all(f"{10**i} bytes" in piped for i in range(12))
    assert piped.count("name") > 1
    for columns, widest in ((200, 80), (80, 80), (60, 60)):
        size = os.terminal_size((columns, 24))
        monkeypatch.setattr(os, "get_terminal_size", lambda *_: size)  # noqa: B023
        printed = shown(Terminal())
        assert max(map(len, printed.splitlines())) <= widest
        assert (printed == piped) == (columns >= 80)
    monkeypatch.setenv("COLUMNS", "120")
    assert 80 < max(map(len, shown(StringIO()).splitlines())) <= 120
