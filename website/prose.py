"""
Checks the prose of the README and of docs/: how easily it is read and how words are
spelled. `make docs` runs it. Code, tables, headings and addresses are left out.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import textstat

ROOT = Path(__file__).parents[1]

LEAST = 50.0
"""The least reading ease of a page, after Flesch; 60 to 70 is plain English."""

WIDEST = 96
"""The longest line of code that fits the column of the site (site.css), in characters."""

MOST = 1_500
"""The most words of a page, without code and tables."""

LONG = ("docs/benchmarks.md",)
"""Pages that a script writes from measurements, as long as these are."""

NARROW = ("README.md", "docs/tutorials", "docs/how-to", "docs/concepts")
"""Pages whose code must fit the column; of the other pages, commands must."""

_COMMAND = re.compile(r"(\$ )?(distir|distir-opt|torchrun|python|make|pip) ")

_CODE = re.compile(r"^```.*?^```$", re.M | re.S)


def pages() -> list[Path]:
    """Returns the README and the pages of docs/, except for the reference."""
    written = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", *(p for p in written if "reference" not in p.parts)]


def prose(text: str) -> str:
    """Returns the sentences of a page."""
    text = _CODE.sub("", text)
    lines = [
        line
        for line in text.splitlines()
        if not line.lstrip().startswith(("|", "#", "<", "!["))
    ]
    text = re.sub(r"\]\([^)]*\)", "]", "\n".join(lines))
    return re.sub(r"`[^`]*`", "it", text)


def problems(page: Path) -> list[str]:
    """Returns complaints about one page: hard to read, or code that is too wide."""
    text, name = page.read_text("utf-8"), page.relative_to(ROOT).as_posix()
    found: list[str] = []
    sentences = prose(text)
    ease = textstat.textstat.flesch_reading_ease(sentences)
    if len(sentences.split()) >= 50 and ease < LEAST:
        found.append(f"{name}: reading ease {ease:.0f}, which is below {LEAST:.0f}")
    if name not in LONG and (words := len(sentences.split())) > MOST:
        found.append(f"{name}: {words:,} words, more than {MOST:,}; split it")
    if name not in LONG:
        wide = [
            line
            for block in _CODE.findall(text)
            for line in block.splitlines()
            if len(line) > WIDEST and (name.startswith(NARROW) or _COMMAND.match(line))
        ]
        found += [f"{name}: code wider than {WIDEST} columns: {line}" for line in wide]
    return found


def misspelled() -> list[str]:
    """Returns what the spelling checker has to say of all pages."""
    words = "transforme,ect"  # a line that a command cuts off; three mesh axes
    command = [sys.executable, "-m", "codespell_lib", "-L", words, *map(str, pages())]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.stderr:
        raise RuntimeError(done.stderr)
    return done.stdout.splitlines()


def main() -> int:
    """Prints all complaints. Returns the exit code."""
    found = [problem for page in pages() for problem in problems(page)]
    found += misspelled()
    print("\n".join(found) if found else f"{len(pages())} pages read well")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
