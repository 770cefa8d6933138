"""The errors that DistIR shows to its users, without a traceback."""

from collections.abc import Sequence

from xdsl.utils.exceptions import DiagnosticException


class DistIRError(DiagnosticException):
    """
    Something the user can mend. The message is one paragraph that names the op, value
    or file and says what to do. xDSL's tools treat it as a diagnostic of a pass.
    """


class ShardingError(DistIRError):
    """An op cannot work on operands with these layouts."""


def listed(names: Sequence[str], limit: int = 4) -> str:
    """Names as a message gives them: at most `limit`, and how many more there are."""
    shown = ", ".join(names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown
