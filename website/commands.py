"""Runs commands of `distir` while pages are made."""

from __future__ import annotations

import contextlib
import shlex
from io import StringIO

from distir.tools.cli import main


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
