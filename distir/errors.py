"""The errors that DistIR shows to its users, without a traceback."""

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import TypeVar

from xdsl.utils.exceptions import DiagnosticException


class DistIRError(DiagnosticException):
    """
    An error that the user can fix. The message is one paragraph that names the op, value or
    file and says what to do. xDSL's tools treat it as a diagnostic of a pass.
    """


class ShardingError(DistIRError):
    """Raised if an op cannot work on operands with these layouts."""


_Name = TypeVar("_Name", bound=str)


def one_of(
    kind: str, name: str, names: Collection[_Name], what: str | None = None
) -> _Name:
    """
    Returns the one of `names` that a user gave as `name` for something of that kind. Raises
    DistIRError if it is none of them, in the name of a pass `what`.
    """
    for known in names:
        if known == name:
            return known
    raise DistIRError(
        f"{f'{what}: ' if what else ''}there is no {kind} {name!r}; choose one of "
        f"{', '.join(names)}"
    )


def listed(names: Sequence[str], limit: int = 4) -> str:
    """
    Returns names as a message gives them: at most `limit`, and how many more there are.
    """
    shown = ", ".join(names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """
    Returns a question to put before the list of what there is, such as `did you mean
    'dgx-a100'? `, with a space at its end; nothing if no known name is close.
    Capitals do not count.
    """
    spelled = {each.casefold(): each for each in known}
    close = get_close_matches(name.casefold(), list(spelled), 1, 0.75)
    return f"did you mean {spelled[close[0]]!r}? " if close else ""
