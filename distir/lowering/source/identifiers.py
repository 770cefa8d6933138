"""
Writes names and strings of the IR as safe Python: identifiers that cannot mean anything
else, literals that cannot end early, comments that stay on one line.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable

_RESERVED = frozenset({*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "self"})
_LIMIT = 60


def sanitized(text: str) -> str:
    """
    Returns a Python identifier made of the ASCII letters, digits and single underscores of
    `text`, without leading underscore; empty if nothing is left.
    """
    kept = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")[:_LIMIT].strip("_")
    return f"v{kept}" if kept[:1].isdigit() else kept


def comment(text: str) -> str:
    """Returns `text` as the rest of a comment line: printable ASCII only, one line."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)


class Names:
    """Hands out identifiers that differ from each other and from reserved ones."""

    def __init__(self, reserved: Iterable[str] = ()):
        self._used = {*_RESERVED, *reserved}

    def fresh(self, hint: str | None, fallback: str) -> str:
        """
        Returns an unused identifier similar to `hint`, or to `fallback` (an identifier) if
        nothing of the hint can be used.
        """
        base = sanitized(hint or "") or fallback
        name, count = base, 1
        while name in self._used:
            count += 1
            name = f"{base}_{count}"
        self._used.add(name)
        return name
