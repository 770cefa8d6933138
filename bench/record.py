"""
`make bench-record`: measures how long the tools take, and keeps the numbers of each commit.

    python bench/record.py [NAME ...]

A name is a section of `docs/benchmarks.md` whose script measures times (`speed`, if none is
given). The numbers of its tables become a line of `data/record.jsonl`, with the commit, the
date and the machine. What became slower than the last line of the same machine is printed,
of lines that were measured while it did nothing else; the page is left as it is
(`make bench` writes it).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

from report import sections

from distir.version import __version__

RECORD = Path(__file__).parent / "data" / "record.jsonl"

SLOWER = 1.1
"""A number that grew by more than this factor is printed."""

_NUMBER = re.compile(r"[0-9][0-9,]*\.?[0-9]*(?:e-?[0-9]+)?")
_GOALS = ("target", "the paper", "published")
"""Headings of columns that hold nothing measured."""


@dataclass(frozen=True)
class Line:
    """
    The numbers of one commit. `numbers` has the text of the row and of the column of each
    number, in the unit that the page gives. `load` is the number of processes that the
    machine was busy with before it was measured; times of a busy machine are too long.
    """

    commit: str
    date: str
    machine: str
    load: float
    numbers: dict[str, float]

    @property
    def is_busy(self) -> bool:
        """Whether other processes used more than half of the cores."""
        cores = re.search(r"(\d+) cores", self.machine)
        return self.load > (int(cores[1]) if cores else 1) / 2


def numbers(section: str) -> Iterator[tuple[str, float]]:
    """Yields the name and the value of each number that the tables of a section hold."""
    heading: list[str] = []
    for line in section.splitlines():
        if not line.startswith("|"):
            heading = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not heading:
            heading = cells
        elif not set(line) <= set("|- "):
            for column, cell in zip(heading[1:], cells[1:], strict=True):
                found = _NUMBER.match(cell)
                if found and column not in _GOALS:
                    value = float(found[0].replace(",", ""))
                    yield f"{cells[0]}: {column}", value


def machine() -> str:
    """Returns the processor, its cores, and the version of Python, as one text."""
    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        found = re.search(r"model name\s*: (.+)", information.read_text())
        model = found[1] if found else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def commit() -> str:
    """
    Returns the commit that is measured; `-dirty` behind it if files differ from it. In a
    folder that is no checkout of git it is the version.
    """
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    done = subprocess.run(command, cwd=RECORD.parent, capture_output=True, text=True)
    return f"version {__version__}" if done.returncode else done.stdout.strip()


def lines(path: Path = RECORD) -> list[Line]:
    """Returns the lines of the record, the oldest first."""
    if not path.exists():
        return []
    return [Line(**json.loads(text)) for text in path.read_text("utf-8").splitlines()]


def slower(before: Line, now: Line) -> list[str]:
    """Returns a sentence for each number that grew by more than the factor `SLOWER`."""
    return [
        f"{name}: {old:g} -> {now.numbers[name]:g}"
        for name, old in before.numbers.items()
        if now.numbers.get(name, old) > old * SLOWER
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", default=["speed"])
    arguments = parser.parse_args()
    known = sections()
    for name in arguments.names:
        if name not in known:
            parser.error(f"there is no section {name}; choose from {', '.join(known)}")
    measured_commit, load = commit(), round(os.getloadavg()[0], 1)
    measured: dict[str, float] = {}
    for name in arguments.names:
        measured |= dict(numbers(import_module(name).section()))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    line = Line(measured_commit, today, machine(), load, measured)
    earlier = [
        old for old in lines() if old.machine == line.machine and not old.is_busy
    ]
    with RECORD.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(line)) + "\n")
    print(f"{len(measured)} numbers of {line.commit} are in {RECORD.name}")
    if line.is_busy:
        print(f"the machine was busy (load {load:g}): not compared, now or later")
        return
    for sentence in slower(earlier[-1], line) if earlier else []:
        print(f"slower than {earlier[-1].commit}: {sentence}")


if __name__ == "__main__":
    main()
