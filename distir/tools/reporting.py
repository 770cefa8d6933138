"""Output of the tools: errors, notes, progress and tables."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from textwrap import shorten
from typing import IO

from xdsl.utils.exceptions import ArgSpecParseError, DiagnosticException, ParseError

INTERRUPTED = 130

GARBAGE = 5_000_000
"""The number of new objects after which a command collects garbage."""


def explain(error: BaseException) -> str | None:
    """
    Returns one paragraph for an error that the user can fix, whatever strings its message
    quotes; None for an error that is a bug of the program.
    """
    match error:
        case ParseError():
            text = f"{error.span.get_location()}: {error.msg}"
        case UnicodeDecodeError():
            text = "the file is not UTF-8 text; is it an .mlir file?"
        case OSError() if error.filename is not None and error.strerror:
            text = f"{error.filename}: {error.strerror}"
        case DiagnosticException() | ArgSpecParseError() | OSError():
            text = str(error) + _offending_op(error)
        case MemoryError():
            text = "out of memory"
        case _:
            return None
    return " ".join(text.split())


def _offending_op(error: BaseException) -> str:
    """
    Returns the op that xDSL points at in the module that it attaches to a verifier's error:
    the line that carets underline.
    """
    for attached in getattr(error, "__notes__", []):
        lines = attached.splitlines()
        for line, below in pairwise(lines):
            if below.strip().startswith("^^"):
                return " in " + shorten(line.strip(), 240, placeholder=" ...")
    return ""


def run_reporting_errors(command: Callable[[], int]) -> int:
    """
    Runs a command and returns its exit code. Every error becomes one paragraph on
    stderr; `DISTIR_DEBUG=1` shows tracebacks too.
    """
    # A program is many objects that live to the end: to search them all for garbage again
    # and again would take a third of the time.
    thresholds = gc.get_threshold()
    gc.set_threshold(GARBAGE, 20, 50)
    try:
        return command()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (Exception, ArgSpecParseError) as error:
        if os.environ.get("DISTIR_DEBUG") == "1":
            traceback.print_exc()
        message = explain(error)
        if message is None:
            what = shorten(f"{type(error).__name__}: {error}", 300)
            message = (
                f"internal error ({what}); please report it together with the command "
                f"and its input (DISTIR_DEBUG=1 shows where it happened)"
            )
        print(f"error: {message}", file=sys.stderr)
        return 1
    finally:
        gc.set_threshold(*thresholds)


def note(message: str) -> None:
    """Prints something that the user should know, on stderr."""
    print(f"note: {' '.join(message.split())}", file=sys.stderr)


@contextmanager
def progress(message: str) -> Generator[None]:
    """
    A context manager that shows a message on stderr, if that is a terminal, while something
    is going on.
    """
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(message)):
        yield


@contextmanager
def progress_bar(message: str, total: int) -> Generator[Callable[[int], None]]:
    """
    A context manager that shows a progress bar on stderr, if that is a terminal. It yields
    a function to be called with how many more of `total` are done.
    """
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn(escape(message)),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    # Without a thread that draws: what runs meanwhile may fork.
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task(message, total=total)

        def advance(count: int) -> None:
            bar.advance(task, count)
            bar.refresh()

        yield advance


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    file: IO[str] | None = None,
) -> None:
    """
    Prints a table to stdout, or to another file; columns after the first are aligned to the
    right.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for i, heading in enumerate(headings):
        grid.add_column(
            Text(heading), justify="right" if i else "left", overflow="fold"
        )
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    console = Console(file=file)
    if not console.is_terminal:
        # Output that is piped into a file must not be cut to a terminal's width.
        console = Console(width=200, file=file)
    console.print(grid)


def seconds_text(seconds: float) -> str:
    """Returns a duration as text with a suitable unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def flops_text(count: float) -> str:
    """Returns a number of floating-point operations as text with a suitable unit."""
    for unit, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f}"


def bytes_text(count: float) -> str:
    """Returns a number of bytes as text with a suitable decimal unit."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"
