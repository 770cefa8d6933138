"""
The errors that DistIR shows to its users without a traceback, and helpers for the
messages of these errors.
"""

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import TypeVar

from xdsl.utils.exceptions import DiagnosticException


class DistIRError(DiagnosticException):
    """
    An error that the user can fix. The message is one paragraph: it names the op, the
    value or the file, and says what to do. xDSL's tools report a DistIRError as a
    diagnostic of the pass that raises it.
    """


class ShardingError(DistIRError):
    """The error for an op that cannot work on operands with the given layouts."""


_Name = TypeVar("_Name", bound=str)


def one_of(
    kind: str, name: str, names: Collection[_Name], what: str | None = None
) -> _Name:
    """
    Returns the element of `names` that equals `name`, a text from the user. Raises
    DistIRError if no element equals `name`. The error's message describes `name` with
    the noun `kind` and lists `names`. If `what` is given, the name of a pass, the
    message begins with `what`.
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
    Returns `names` as one text for a message: the first `limit` names, and the number
    of names that are left out, if any.
    """
    shown = ", ".join(names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """
    Returns a question with the name in `known` that is closest to `name`, such as `did
    you mean 'dgx-a100'? `, or an empty text if no name in `known` is close. The
    question ends with a space, so that a list of all names can follow. Upper and lower
    case count as equal.
    """
    spelled = {each.casefold(): each for each in known}
    close = get_close_matches(name.casefold(), list(spelled), 1, 0.75)
    return f"did you mean {spelled[close[0]]!r}? " if close else ""
