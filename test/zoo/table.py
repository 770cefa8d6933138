"""The matrix of the zoo as a table of docs/reference/zoo.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from zoo.columns import COLUMNS, DOUBLE_TOLERANCE, TOLERANCE
from zoo.families import REFUSALS
from zoo.model import Family

_BEGIN = "<!-- made by `make zoo` -->"
_END = "<!-- end of what `make zoo` made -->"

Outcomes = Mapping[str, Mapping[str, str]]


def write_table(path: Path, families: Mapping[str, Family], outcomes: Outcomes) -> None:
    """Replaces what lies between two comments of a file by the table and what is refused."""
    text = path.read_text("utf-8")
    before, rest = text.split(_BEGIN)
    _, after = rest.split(_END)
    made = f"{_BEGIN}\n{table(families, outcomes)}\n{_END}"
    path.write_text(before + made + after, "utf-8")


def table(families: Mapping[str, Family], outcomes: Outcomes) -> str:
    """
    Returns a row for each family with results: what came of each column, and how much of
    the parameters' bytes and of the floating-point operations d2 t2 splits over t.
    """
    head = ["family", "code", *COLUMNS, "bytes / t", "FLOPs / t"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    notes: dict[str, None] = {}
    count = equal = 0
    for name, family in families.items():
        found = outcomes.get(name, {})
        if not set(COLUMNS) <= found.keys():
            continue
        cells = [_cell(name, column, found[column], notes) for column in COLUMNS]
        count, equal = count + 1, equal + (set(cells) == {"="})
        shares = [f"{float(x):.0%}" for x in found.get("shares", "").split()]
        cells += shares or ["", ""]
        name = f"{name} (64 bits)" if family.double else name
        lines.append(f"| {name} | {family.source} | {' | '.join(cells)} |")
    summary = (
        f"{count} families; {equal} are equal to PyTorch in every column, and what is not "
        f"says why. Batch norms over few numbers, one behind the other, amplify rounding: "
        f"families marked so are compared in 64-bit floats, to {DOUBLE_TOLERANCE:g} instead "
        f"of {TOLERANCE:g}."
    )
    reasons = [f"{i}. {note}" for i, note in enumerate(notes, 1)]
    return "\n".join([summary, "", *lines, "", *reasons]).rstrip()


def _cell(name: str, column: str, outcome: str, notes: dict[str, None]) -> str:
    """Returns "=" or the number of the note that says why not."""
    if outcome == "equal":
        return "="
    for refusal in REFUSALS:
        if refusal.explains(name, column, outcome):
            note = refusal.reason
            break
    else:
        note = f"`{name}`, {column}: {outcome.splitlines()[0]}"
    notes.setdefault(note)
    return f"({list(notes).index(note) + 1})"
