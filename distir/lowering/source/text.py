"""
Writes Python text safely: identifiers shadow nothing, literals cannot end early,
comments stay on one line, and long lines are broken.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable, Sequence
from textwrap import wrap

WIDTH = 92
"""
The largest length of a line that is not broken, without the indentation of its method.
"""

_STEP = 4
_VIEWS = (".transpose(", ".permute(", ".unsqueeze(", ".squeeze(", ".t(")
"""Methods that copy nothing. The time of their call makes no difference."""

_OPENING, _CLOSING = "([{", ")]}"

_MARKS = re.compile(
    r"""[][(){}, ]|"(?:[^"\\]|\\.)*+(?:"|\\?$)|'(?:[^'\\]|\\.)*+(?:'|\\?$)""", re.DOTALL
)
"""Matches a bracket, a comma, a space or a string, even if the string has no end."""


def broken(line: str) -> list[str]:
    """
    Returns a line of code as a list of lines: several if the line is too long and ends
    in a call or a list, else one.
    """
    ends = line.rstrip(":,")
    if len(line) <= WIDTH or not ends or ends[-1] not in _CLOSING:
        return [line]
    indent = len(line) - len(line.lstrip())
    start, stop = _breakable(ends)
    if start <= indent and not ends[indent:].startswith(("(", "[", "*(", "*[")):
        return [line]
    items = _items(ends[start + 1 : stop])
    if len(items) < 2:
        return [line]
    margin = " " * (indent + _STEP)
    rows: list[str] = []
    for item in items:
        piece = f"{item},"
        if rows and len(rows[-1]) + 1 + len(piece) <= WIDTH:
            rows[-1] += f" {piece}"
        else:
            rows.append(margin + piece)
    inner = [part for row in rows for part in broken(row)]
    return [line[: start + 1], *inner, " " * indent + line[stop:]]


def _breakable(text: str) -> tuple[int, int]:
    """
    Returns the positions of the outermost pair of brackets that closes at the end of
    `text` and contains several items, or (0, 0) if there is none.
    """
    closing = len(text) - len(text.rstrip(_CLOSING))
    opened = [at for at, char, _ in _scan(text) if char in _OPENING]
    for stop in range(len(text) - 1, len(text) - 1 - closing, -1):
        level = _matching(text, stop, opened)
        if len(_items(text[level + 1 : stop])) > 1:
            return level, stop
    return 0, 0


def _matching(text: str, stop: int, opened: Sequence[int]) -> int:
    """
    Returns the position of the bracket that the bracket at position `stop` closes.
    """
    marks = [(at, c) for at, c, _ in _scan(text) if c in _OPENING + _CLOSING]
    depth = 0
    for at, char in reversed([m for m in marks if m[0] <= stop]):
        depth += 1 if char in _CLOSING else -1
        if depth == 0:
            return at
    return opened[0]


def _scan(text: str) -> list[tuple[int, str, int]]:
    """
    Returns the brackets, commas and spaces outside of strings, each with its position,
    the character, and the bracket depth after it.
    """
    found: list[tuple[int, str, int]] = []
    depth = 0
    for mark in _MARKS.finditer(text):
        char = mark.group()
        if len(char) == 1 and char not in "\"'":
            depth += (char in _OPENING) - (char in _CLOSING)
            found.append((mark.start(), char, depth))
    return found


def _items(text: str) -> list[str]:
    """
    Returns the parts of `text` between the commas that are outside of brackets and
    strings.
    """
    cuts = [at for at, char, depth in _scan(text) if char == "," and depth == 0]
    pieces = [
        text[a:b].strip()
        for a, b in zip([0, *(c + 1 for c in cuts)], [*cuts, len(text)], strict=True)
    ]
    return [piece for piece in pieces if piece]


def filled(start: str, items: Sequence[str], end: str = "") -> list[str]:
    """
    Returns `start`, the items separated by commas, and `end` in one line. If the line
    is too long, the items are in brackets on several lines.
    """
    line = f"{start}{', '.join(items)}{end}"
    if len(line) <= WIDTH or not items:
        return [line.rstrip()] if not end else [line]
    indent = " " * (len(start) - len(start.lstrip()))
    rows = wrap(
        ", ".join(items) + ",",
        WIDTH - _STEP - len(indent),
        break_long_words=False,
        break_on_hyphens=False,
    )
    margin = indent + " " * _STEP
    return [f"{start}(", *(margin + row for row in rows), f"{indent}){end}"]


def chained(lines: list[str], name: str, written: str) -> bool:
    """
    Merges `name = name.method(...)` into the line that computed `name`, and returns
    whether it was merged. The line must be a call. If the method copies data, the line
    must be the last.
    """
    word = re.compile(rf"\b{name}\b")
    for at in range(len(lines) - 1, -1, -1):
        if word.search(lines[at]):
            break
    else:
        return False
    start, rest = f"{name} = ", written.removeprefix(name)
    line = lines[at] + rest
    is_view = rest.startswith(_VIEWS)
    is_call = lines[at].startswith(start) and lines[at].endswith(")")
    simple = is_call and not any(
        char == " " and depth == 0 for _, char, depth in _scan(lines[at][len(start) :])
    )
    if not simple or len(line) > WIDTH or word.search(rest):
        return False
    if at < len(lines) - 1 and not is_view:
        return False
    lines[at] = line
    return True


_RESERVED = frozenset({*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "self"})
_LIMIT = 60


def sanitized(text: str) -> str:
    """
    Returns a Python identifier made of the ASCII letters, digits and single underscores
    of `text`, without a leading underscore. Returns an empty string if no character
    remains.
    """
    kept = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")[:_LIMIT].strip("_")
    return f"v{kept}" if kept[:1].isdigit() else kept


def comment(text: str) -> str:
    """
    Returns `text` in a form that fits into a comment: question marks replace characters
    other than printable ASCII.
    """
    return "".join(c if " " <= c <= "~" else "?" for c in text)


class Names:
    """Hands out identifiers that are distinct and not reserved."""

    def __init__(self, reserved: Iterable[str] = ()):
        self._used = {*_RESERVED, *reserved}

    def fresh(self, hint: str | None, fallback: str) -> str:
        """
        Returns an unused identifier similar to `hint`, or to `fallback` (an identifier)
        if no character of `hint` can be used.
        """
        base = sanitized(hint or "") or fallback
        name, count = base, 1
        while name in self._used:
            count += 1
            name = f"{base}_{count}"
        self._used.add(name)
        return name
