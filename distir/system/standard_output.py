"""A stdout that commands can still use after its reader has gone."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from io import TextIOWrapper


class _LastingOutput(TextIOWrapper):
    """
    A text stream for a process's output. When the program that reads the pipe has ended
    (`| head`), the rest of the output is dropped. The command goes on, and writes its
    files.
    """

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        """Sends the remaining output, and all later output, to the null device."""
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self.fileno())
        os.close(nothing)


@contextmanager
def lasting_output() -> Generator[None]:
    """
    Returns a context manager. While its block runs, output to a stdout without a reader
    is dropped, instead of ending the command. Has no effect if `sys.stdout` is not a
    file of the process, as in notebooks.
    """
    before = sys.stdout
    if not isinstance(before, TextIOWrapper):
        yield
        return
    before.flush()
    output = _LastingOutput(
        before.buffer,
        before.encoding,
        before.errors,
        line_buffering=before.line_buffering,
    )
    sys.stdout = output
    try:
        yield
    finally:
        output.flush()
        output.detach()
        sys.stdout = before
