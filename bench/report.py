"""
`make bench`: measures, and writes what it measured into `docs/benchmarks.md`.

    python bench/report.py [NAME ...]

Every script here that has a function `section()` is a section of that file, between the
comments `<!-- NAME -->` and `<!-- end of NAME -->`, with the script's name; a new one is put
at the end. The function gives the section as Markdown. What is published and compared with
is in `data`, with its source.
"""

from __future__ import annotations

import argparse
import resource
from importlib import import_module
from pathlib import Path

DOCUMENT = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def splice(text: str, name: str, section: str) -> str:
    """Returns the document with this section in the place of the previous one."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    if start not in text:
        text = f"{text.rstrip()}\n\n{start}\n{end}\n"
    before, rest = text.split(start, 1)
    if end not in rest:
        raise ValueError(f"{DOCUMENT.name} has {start} without {end}")
    return f"{before}{start}\n{section.strip()}\n{end}{rest.split(end, 1)[1]}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Returns a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cpu_seconds() -> float:
    """Returns the CPU seconds of this process and of those that it waited for."""
    usage = [
        resource.getrusage(who)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    return sum(u.ru_utime + u.ru_stime for u in usage)


def sections() -> list[str]:
    """Returns the names of the scripts that are sections."""
    scripts = sorted(Path(__file__).parent.glob("*.py"))
    return [s.stem for s in scripts if "\ndef section(" in s.read_text("utf-8")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    known = sections()
    for name in arguments.names or known:
        if name not in known:
            parser.error(f"there is no section {name}; choose from {', '.join(known)}")
        section = import_module(name).section()
        # A section may take long, and others may have written in between.
        text = DOCUMENT.read_text("utf-8")
        DOCUMENT.write_text(splice(text, name, section), "utf-8")
        print(f"{name}: written", flush=True)


if __name__ == "__main__":
    main()
