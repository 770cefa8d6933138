"""
Runs the pages of the documentation that can be followed: their commands in order, each
page in an empty folder. The output that a page shows must be the output that comes.

A block ```sh holds commands, one a line. A block ```text or ```mlir that follows it at
once shows what they print; a line `...` in it stands for any lines. A block with
`title="NAME"` is a file, which is written before the commands below it run. Numbers are
compared too: counts exactly, others to a thousandth, as losses differ in their last digits
between processors. Only versions are not compared. Commands of make are left out: they
install what the rest needs.
`python -m website.pages docs/tutorials/*.md` writes the outputs anew.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from website.commands import run

ROOT = Path(__file__).parents[1]
"""The folder of the repository."""

_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.M | re.S)
_SHOWN = ("text", "mlir")
_IN_PROCESS = re.compile(r"distir [^|>&;$*]+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")

_TOLERANCE = 1e-3
"""The largest relative difference of two numbers that are not counts."""

_ROUNDING = 1e-5
"""Numbers below this are rounding errors, which processors make in their own ways."""


@dataclass(frozen=True)
class Shown:
    """
    An output that a page shows: the commands, the text on the page and the text that
    came. `place` is the range of characters of the text in the page.
    """

    commands: str
    expected: str
    got: str
    place: tuple[int, int]

    @property
    def is_right(self) -> bool:
        """Whether the page shows the output, apart from left-out lines and blanks."""
        return _agree(self.expected.splitlines(), self.got.splitlines())


def _agree(wanted: list[str], came: list[str]) -> bool:
    """
    Returns whether the lines that came are those wanted, in which `...` stands for any
    number of lines.
    """
    gap = wanted.index("...") if "..." in wanted else len(wanted)
    if not all(map(_same_line, wanted[:gap], came)) or len(came) < gap:
        return False
    if gap == len(wanted):
        return len(came) == gap
    rest = wanted[gap + 1 :]
    return any(_agree(rest, came[start:]) for start in range(gap, len(came) + 1))


def _same_line(wanted: str, came: str) -> bool:
    """Returns whether two lines have the same words, and numbers that agree."""
    if _words(wanted) != _words(came):
        return False
    pairs = zip(_NUMBER.findall(wanted), _NUMBER.findall(came), strict=True)
    return all(_same_number(*pair) for pair in pairs)


def _words(line: str) -> str:
    """Returns a line with `#` for each number, and with single blanks."""
    line = re.sub(r"[─-]{4,}", "-", line)
    return re.sub(r"\s+", " ", _NUMBER.sub("#", line)).strip()


def _same_number(wanted: str, came: str) -> bool:
    """
    Returns whether two numbers agree: integers if they are equal, others if they are
    close. Versions, such as 2.13.0, always agree.
    """
    if "." not in wanted + came and "e" not in wanted + came:
        return wanted == came
    if wanted.count(".") > 1 and came.count(".") > 1:
        return True
    left, right = (float(text.replace(",", "")) for text in (wanted, came))
    largest = max(left, right)
    return largest < _ROUNDING or abs(left - right) <= _TOLERANCE * largest


def follow(page: Path, folder: Path) -> Iterator[Shown]:
    """
    Writes the files of a page to `folder` and runs its commands there. Yields the
    outputs that the page shows. Raises RuntimeError, with what it said, for a command
    that fails.
    """
    text = page.read_text("utf-8")
    commands, got, end = "", "", -1
    for block in _BLOCK.finditer(text):
        kind, about, body = block.groups()
        title = re.search(r'title="([^"]+)"', about)
        if kind == "sh":
            commands, got, end = body, _run_all(body, folder, page), block.end()
        elif title is not None:
            (folder / title[1]).write_text(body, "utf-8")
        elif kind in _SHOWN and text[end : block.start()].strip() == "" and end >= 0:
            yield Shown(commands, body, got, block.span(3))


def _run_all(body: str, folder: Path, page: Path) -> str:
    """Runs the commands of a block. Returns what they print."""
    printed: list[str] = []
    for line in body.replace("\\\n", " ").splitlines():
        command = line.split("  #")[0].strip()
        if not command or command.startswith("make "):
            continue
        try:
            printed.append(_run(command, folder))
        except RuntimeError as error:
            raise RuntimeError(f"{page.name}: {error}") from error
    return "".join(f"{text}\n" for text in printed if text)


def _run(command: str, folder: Path) -> str:
    """
    Runs a command in `folder`, 80 columns wide, and returns what it prints. A plain
    command of `distir` runs in this process, which saves its start.
    """
    if _IN_PROCESS.fullmatch(command):
        with contextlib.chdir(folder):
            return run(command)
    environment = {**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    tools = str(Path(sys.executable).parent)
    environment["PATH"] = os.pathsep.join([tools, environment["PATH"]])
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout.rstrip()


def _write(page: Path) -> None:
    """Replaces the outputs on a page that are not right."""
    os.environ["COLUMNS"] = "80"
    text = page.read_text("utf-8")
    with TemporaryDirectory(prefix="distir-") as folder:
        found = list(follow(page, Path(folder)))
    if page.read_text("utf-8") != text:
        raise RuntimeError(f"{page.name} was changed meanwhile; run this again")
    for shown in reversed(found):
        if not shown.is_right:
            start, end = shown.place
            lines = (line.rstrip() for line in shown.got.splitlines())
            text = text[:start] + "".join(f"{line}\n" for line in lines) + text[end:]
    page.write_text(text, "utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        _write(Path(name))
