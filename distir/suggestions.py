"""Names that are spelled like one that does not exist, for messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """
    Returns a question to put before the list of what there is, such as `did you mean
    'dgx-a100'? `, with a space at its end; nothing if no known name is close.
    Capitals do not count.
    """
    spelled = {each.casefold(): each for each in known}
    close = get_close_matches(name.casefold(), list(spelled), 1, 0.75)
    return f"did you mean {spelled[close[0]]!r}? " if close else ""
