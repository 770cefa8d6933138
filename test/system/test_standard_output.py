"""A command whose output nobody reads to the end still ends, and writes its files."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path

import pytest

from distir.system.standard_output import lasting_output


@contextmanager
def closed_pipe() -> Generator[None]:
    """Makes stdout a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    before, sys.stdout = sys.stdout, TextIOWrapper(os.fdopen(writer, "wb"))
    try:
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.close()
        sys.stdout = before


def test_output_without_a_reader_is_dropped(tmp_path: Path) -> None:
    with closed_pipe(), lasting_output():
        for _ in range(3):
            print("x" * 100_000, flush=True)
        (tmp_path / "plan.json").write_text("{}")
    assert (tmp_path / "plan.json").exists()


def test_it_is_an_error_elsewhere() -> None:
    with closed_pipe(), pytest.raises(BrokenPipeError):
        print("x", flush=True)


def test_tables_do_not_end_the_command() -> None:
    """rich ends the process for an error of the pipe, unless the stream hides it."""
    from distir.tools.reports.reporting import run_reporting_errors, table

    def command() -> int:
        table(["configuration", "step time"], [["d=2", "4 ms"]] * 50)
        sys.stdout.flush()
        table(["configuration", "step time"], [["d=2", "4 ms"]] * 50)
        return 3

    with closed_pipe():
        assert run_reporting_errors(command) == 3
