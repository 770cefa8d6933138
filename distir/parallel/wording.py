"""Errors in the words of `parallelize`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator

from distir.errors import DistIRError

_DEGREE = re.compile(r"(?<![\w-])-([rdectpk])\b(?!-)")
"""The option of a command for a degree of parallelism or the number of micro-batches."""

_OPTIONS = {
    "--batch-norm-micro-batches": 'batch_norm="device"',
    "--float8 row-gw-hp": 'float8="row-gw-hp"',
    "equal_features (--equal-features)": "equal_features=True",
}
"""Other options of commands, as arguments."""


def in_words_of_python(message: str) -> str:
    """Returns a message with the arguments of `parallelize` instead of options of commands."""
    for option, argument in _OPTIONS.items():
        message = message.replace(option, argument)
    return _DEGREE.sub(r"\1=", message)


@contextlib.contextmanager
def in_python() -> Generator[None]:
    """
    A context manager that makes errors speak of the arguments of `parallelize`. Raises
    DistIRError.
    """
    try:
        yield
    except DistIRError as error:
        # The cause stays; a chain of two errors that say the same would not help.
        raise DistIRError(in_words_of_python(str(error))) from error.__cause__
