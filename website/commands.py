"""Runs commands of `distir` while pages are made."""

from __future__ import annotations

import contextlib
import re
import shlex
from io import StringIO

from distir.tools.cli import main

_WIDTH = 92
"""Columns of a command on a page."""


def folded(command: str) -> str:
    """Returns a command as lines that fit a page, each of which begins with an option."""
    lines = [""]
    for part in re.split(r"(?= -{1,2}[a-z])", command):
        if len(lines[-1] + part) > _WIDTH - 2:
            lines.append("   ")
        lines[-1] += part
    return " \\\n".join(lines)


def run(command: str) -> str:
    """
    Runs a command of `distir` in the working directory and returns what it prints. Raises
    RuntimeError if it fails.
    """
    output, errors = StringIO(), StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            code = main(shlex.split(command)[1:])
        except SystemExit as end:  # of the parser of the command line
            code = end.code
    if code:
        raise RuntimeError(f"{command}: {errors.getvalue()}")
    return output.getvalue().rstrip()
