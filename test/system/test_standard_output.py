"""A command whose output nobody reads to the end still ends, and writes its files."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path

import pytest

from distir.system.standard_output import lasting_output


@pytest.fixture
def closed_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes stdout a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(os.fdopen(writer, "wb")))


@pytest.mark.usefixtures("closed_pipe")
def test_output_without_a_reader_is_dropped(tmp_path: Path) -> None:
    with lasting_output():
        for _ in range(3):
            print("x" * 100_000, flush=True)
        (tmp_path / "plan.json").write_text("{}")
    assert (tmp_path / "plan.json").exists()


@pytest.mark.usefixtures("closed_pipe")
def test_it_is_an_error_elsewhere() -> None:
    with pytest.raises(BrokenPipeError):
        print("x", flush=True)


@pytest.mark.usefixtures("closed_pipe")
def test_tables_do_not_end_the_command() -> None:
    """rich ends the process for an error of the pipe, unless the stream hides it."""
    from distir.tools.reports.reporting import run_reporting_errors, table

    def command() -> int:
        table(["configuration", "step time"], [["d=2", "4 ms"]] * 50)
        sys.stdout.flush()
        table(["configuration", "step time"], [["d=2", "4 ms"]] * 50)
        return 3

    assert run_reporting_errors(command) == 3
