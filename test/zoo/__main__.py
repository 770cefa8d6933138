"""
Runs the zoo: `python -m zoo [FAMILY ...] [--columns import,...] [--write docs/reference/zoo.md]`.

Each family is visited in a process of its own, which is forked from one that has
everything loaded. What came of it goes to a file of JSON lines at once, so that a run that
was stopped goes on where it was: families whose columns are there are not visited again.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path("build/zoo.jsonl")
SECONDS = 300


def main() -> int:
    """Visits the families that are asked for and shows what came of them."""
    from zoo.columns import COLUMNS
    from zoo.families import REFUSALS, families
    from zoo.table import write_table

    parser = argparse.ArgumentParser(prog="python -m zoo", description=__doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    parser.add_argument("--columns", type=lambda text: text.split(","), default=COLUMNS)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE.jsonl")
    parser.add_argument(
        "--again", action="store_true", help="visit those that are done"
    )
    parser.add_argument(
        "--seconds",
        type=int,
        default=SECONDS,
        help="of a processor, the most for a family",
    )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE.md",
        help="where the matrix is to be written",
    )
    arguments = parser.parse_args()
    every = families()
    for word, known in ((arguments.families, every), (arguments.columns, COLUMNS)):
        if unknown := [w for w in word if w not in known]:
            parser.error(f"there is no {unknown[0]!r}; choose from {', '.join(known)}")
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    done = {} if arguments.again else read(arguments.results)
    left = {
        name: [c for c in arguments.columns if c not in done.get(name, {})]
        for name in arguments.families or every
    }
    if any(left.values()):
        _warm_up()
    for name, columns in left.items():
        if columns:
            _visit_apart(name, columns, arguments.results, arguments.seconds)
    outcomes = read(arguments.results)
    if arguments.write:
        write_table(arguments.write, every, outcomes)
    unexplained = [
        f"{name}, {column}: {outcome}"
        for name in left
        for column, outcome in outcomes.get(name, {}).items()
        if column in COLUMNS
        and outcome != "equal"
        and not any(r.explains(name, column, outcome) for r in REFUSALS)
    ]
    for text in unexplained:
        print(text)
    return 1 if unexplained else 0


def _warm_up() -> None:
    """Loads in this process what every visit needs, PyTorch's library of functions too."""
    from zoo.columns import Visit
    from zoo.families import families

    Visit(families()["mlp"]).run("d2 t2")


def read(path: Path) -> dict[str, dict[str, str]]:
    """Returns what came of each column of each family; the last word counts."""
    found: dict[str, dict[str, str]] = {}
    if path.exists():
        for line in path.read_text("utf-8").splitlines():
            row = json.loads(line)
            found.setdefault(row["family"], {})[row["column"]] = row["outcome"]
    return found


def _visit_apart(
    name: str, columns: Sequence[str], results: Path, seconds: int
) -> None:
    """Visits a family in a forked process, for at most so many seconds of a processor."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        _visit_here(name, columns, writing)
    os.close(writing)
    told: list[str] = []
    text = b""
    while piece := os.read(reading, 1 << 16):
        *lines, text = (text + piece).split(b"\n")
        for line in lines:
            row = json.loads(line)
            told.append(row["column"])
            _tell(name, row["column"], row["outcome"], results)
    os.close(reading)
    _, status, used = os.wait4(child, 0)
    left = [column for column in columns if column not in told]
    if left:
        why = "took too long" if os.WIFSIGNALED(status) else "ended"
        _tell(name, left[0], f"the process {why}", results)
    print(f"{name}: {used.ru_utime + used.ru_stime:.1f} CPU s", flush=True)


def _tell(name: str, column: str, outcome: str, results: Path) -> None:
    row = {"family": name, "column": column, "outcome": outcome}
    with results.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(f"{name:20} {column:12} {outcome[:1500]}", flush=True)


def _visit_here(name: str, columns: Sequence[str], writing: int) -> None:
    """Visits a family in this process, which then ends."""
    from zoo.columns import visit
    from zoo.families import families

    def tell(column: str, outcome: str) -> None:
        row = json.dumps({"column": column, "outcome": outcome}) + "\n"
        os.write(writing, row.encode())

    try:
        visit(families()[name], columns, tell)
    except BaseException:
        text = traceback.format_exc(limit=-6)
        tell("crash", text)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
