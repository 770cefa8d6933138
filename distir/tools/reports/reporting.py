"""Output of the command-line tools: errors, notes, progress and tables."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from textwrap import shorten
from threading import Event, Thread
from time import monotonic
from typing import IO, TYPE_CHECKING

from xdsl.utils.exceptions import ArgSpecParseError, DiagnosticException, ParseError

from distir.system.garbage import leave_objects_at_exit, rare_garbage_collection
from distir.system.standard_output import lasting_output

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130
"""The exit code of a command that the user interrupted."""

_WIDEST = 80
"""
The largest width of a table, in characters. It is the same in a terminal and in a pipe,
so that a script meets the tables that its author saw.
"""

_BETWEEN = 3
"""
The number of spaces between two columns of a table. Tables that are too wide have one
less.
"""

_NARROWEST = 16
"""The smallest width of the first column of a table, in characters."""

FIRST_LINE_AFTER = 2.0
"""Seconds of work before a line about it is printed, where stderr is no terminal."""

_SECONDS_BETWEEN_LINES = 10.0


def explain(error: BaseException) -> str | None:
    """
    Returns one paragraph about an error that the user can fix. Returns None for any
    other error, which is a bug of DistIR.
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


def error_message(error: BaseException) -> str:
    """
    Returns one paragraph about an error: its explanation, or, for a bug of DistIR, a
    request to report it.
    """
    message = explain(error)
    if message is None:
        what = shorten(f"{type(error).__name__}: {error}", 300)
        message = (
            f"internal error ({what}); please report it together with the command "
            f"and its input (DISTIR_DEBUG=1 shows where it happened)"
        )
    return message


def _offending_op(error: BaseException) -> str:
    """
    Returns the line of the op that caused a verifier's error. xDSL attaches the module
    to the error and underlines the op with carets. Returns an empty string if nothing
    is underlined.
    """
    for attached in getattr(error, "__notes__", []):
        lines = attached.splitlines()
        for line, below in pairwise(lines):
            if below.strip().startswith("^^"):
                return " in " + shorten(line.strip(), 240, placeholder=" ...")
    return ""


def run_reporting_errors(command: Callable[[], int]) -> int:
    """
    Runs a command and returns its exit code. Each error is printed on stderr as one
    paragraph. With `DISTIR_DEBUG=1` the traceback is printed too. If the reader of
    stdout stops reading, as in `distir search ... | head -3`, the command still runs to
    its end.
    """
    leave_objects_at_exit()
    try:
        with rare_garbage_collection(), lasting_output():
            return command()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (Exception, ArgSpecParseError) as error:
        if os.environ.get("DISTIR_DEBUG") == "1":
            traceback.print_exc()
        print(f"error: {error_message(error)}", file=sys.stderr)
        return 1


def note(message: str) -> None:
    """Prints a message for the user on stderr."""
    print(f"note: {' '.join(message.split())}", file=sys.stderr)


@contextmanager
def progress(message: str) -> Generator[None]:
    """
    Returns a context manager that shows `message` on stderr while the block runs, with
    the time since the start. If stderr is a terminal, it shows a spinner, else it
    prints lines: the first after two seconds, then one every ten seconds.
    """
    if not sys.stderr.isatty():
        ended = Event()
        lines = Thread(target=_print_lines, args=(message, ended), daemon=True)
        lines.start()
        try:
            yield
        finally:
            ended.set()
            lines.join()
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(message)):
        yield


def _print_lines(message: str, ended: Event) -> None:
    """Prints the lines of `progress` until the event is set."""
    if ended.wait(FIRST_LINE_AFTER):
        return
    begun = monotonic() - FIRST_LINE_AFTER
    note(f"{message} ...")
    while not ended.wait(_SECONDS_BETWEEN_LINES):
        note(f"{message}: {monotonic() - begun:.0f} s")


def _progress_lines(message: str, total: int) -> Callable[[int], None]:
    """
    Returns a function that counts finished items. The function prints the count and an
    estimate of the remaining time, first after two seconds and then every ten seconds.
    """
    begun = monotonic()
    done, due = 0, begun + FIRST_LINE_AFTER

    def advance(count: int) -> None:
        nonlocal done, due
        done += count
        now = monotonic()
        if now >= due and 0 < done < total:
            due = now + _SECONDS_BETWEEN_LINES
            left = seconds_text((now - begun) / done * (total - done))
            note(f"{message}: {done} of {total}, about {left} left")

    return advance


@contextmanager
def progress_bar(message: str, total: int) -> Generator[Callable[[int], None]]:
    """
    Returns a context manager that shows on stderr how many of `total` items are
    finished: as a progress bar on a terminal, else as lines, the first after two
    seconds, then one every ten seconds. The context manager yields a function that
    takes the number of newly finished items.
    """
    if not sys.stderr.isatty():
        yield _progress_lines(message, total)
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
    # No thread draws the bar, because the code that runs meanwhile may fork.
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
    width: int | None = None,
) -> None:
    """
    Prints a table to `file`, or to stdout if it is None. All columns except the first
    are aligned to the right.

    A line has at most `width` characters, or the number in the environment variable
    COLUMNS, or 80. If the table is wider, names in the first column are broken after
    dots and similar marks, and headings between words. If that is not enough, the last
    columns are printed as a second table below.
    """
    from rich.cells import cell_len

    console = _console(width, file)
    if width is None and "COLUMNS" not in os.environ:
        widest = console.width if console.is_terminal else _WIDEST
        console = _console(min(widest, _WIDEST), file)
    columns = list(zip(headings, *rows, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    if sum(widths) + _BETWEEN * (len(widths) - 1) <= console.width:
        _print_table(console, headings, rows, widths, _BETWEEN)
        return
    narrow = _BETWEEN - 1
    needed = [
        narrow + max(*map(cell_len, [*heading.split(), *cells]), 1)
        for heading, *cells in columns
    ]
    first = min(widths[0], _NARROWEST)
    begin = 1
    while begin < len(columns):
        end = begin + 1
        while (
            end < len(columns) and first + sum(needed[begin : end + 1]) <= console.width
        ):
            end += 1
        left = max(first, console.width - sum(needed[begin:end]))
        name = min(widths[0], left)
        shown = [0, *range(begin, end)]
        _print_table(
            console,
            [headings[i] for i in shown],
            [[row[i] for i in shown] for row in rows],
            [name, *(width - narrow for width in needed[begin:end])],
            narrow,
        )
        begin = end
        if begin < len(columns):
            console.print()


def _print_table(
    console: Console,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    between: int,
) -> None:
    """
    Prints a table with columns of the given `widths`, and `between` spaces between
    them.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, between - 2, 0, 1),
    )
    for i, (heading, width) in enumerate(zip(headings, widths, strict=True)):
        justify = "right" if i else "left"
        grid.add_column(Text(heading), justify=justify, width=width)
    for first, *others in rows:
        name = "\n".join(broken(first, widths[0]))
        grid.add_row(Text(name), *(Text(cell) for cell in others))
    whole = sum(widths) + between * len(widths)
    if whole > console.width:
        console = _console(whole, console.file)
    console.print(grid)


def _console(width: int | None, file: IO[str] | None) -> Console:
    """
    Returns a console of `width` characters that writes to `file`, or to stdout if it is
    None. In a notebook rich would display the text at once instead of writing it.
    """
    from rich.console import Console

    return Console(width=width, file=file, force_jupyter=False)


def broken(name: str, width: int) -> list[str]:
    """
    Returns `name` as lines of at most `width` characters. Lines end after spaces, dots
    and similar marks where possible.
    """
    from rich.cells import cell_len

    lines = [""]
    for part in re.findall(r"[^\s./,:_-]*[\s./,:_-]*", name):
        if lines[-1] and cell_len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        while cell_len(part.rstrip()) > width:
            lines[-1:] = [part[:width], ""]
            part = part[width:]
        lines[-1] += part
    return [line.rstrip() for line in lines if line] or [""]


def seconds_text(seconds: float) -> str:
    """Returns a duration as text with a suitable unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def time_range_text(least: float, most: float) -> str:
    """Returns a rough time range as text, from `least` to `most` seconds."""
    unit, name = next(
        (unit, name)
        for unit, name in ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))
        if most >= 2 * unit or name == "seconds"
    )
    low, high = round(least / unit), max(round(most / unit), 1)
    if 0 < low < high:
        return f"{low} to {high} {name}"
    return f"up to {high} {name if high > 1 else name.rstrip('s')}"


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
