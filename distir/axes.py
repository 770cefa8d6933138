"""The axes of a mesh as users write them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from distir.errors import DistIRError

_AXIS = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<size>\d+)")


def axes_of(texts: Sequence[str], what: str) -> list[tuple[str, int]]:
    """
    Parses `NAME=SIZE` texts, as pass `what` is given them, into names and sizes. Raises
    DistIRError.
    """
    found: list[tuple[str, int]] = []
    for text in texts:
        match = _AXIS.fullmatch(text)
        if match is None:
            raise DistIRError(
                f"{what}: cannot read the axis {text!r}; write NAME=SIZE, for example d=2"
            )
        found.append((match["name"], int(match["size"])))
    return found
