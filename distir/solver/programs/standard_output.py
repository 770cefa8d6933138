"""
Keeps what solvers print away from standard output, which belongs to the program's own
results: text of MLIR, for example, that the next tool of a pipe reads.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import IO

_STDOUT = 1


class _Guard:
    """
    Turns file descriptor 1 away while anybody asks for that. What C and C++ print, in
    whatever thread, and what child processes print is dropped meanwhile, or with
    `DISTIR_DEBUG=1` goes to stderr; what Python prints comes through.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.saved = -1
        self.python: tuple[IO[str], IO[str]] | None = None
        """What `sys.stdout` was before, and what it is meanwhile."""

    def enter(self) -> None:
        with self.lock:
            self.users += 1
            if self.users > 1:
                return
            _flush()
            try:
                self.saved = os.dup(_STDOUT)
            except OSError:  # it is closed: nothing gets out
                self.saved = -1
                return
            self.python = self._redirected()
            debug = os.environ.get("DISTIR_DEBUG") == "1"
            away = os.dup(2) if debug else os.open(os.devnull, os.O_WRONLY)
            os.dup2(away, _STDOUT)
            os.close(away)

    def leave(self) -> None:
        with self.lock:
            self.users = max(self.users - 1, 0)
            if self.users or self.saved < 0:
                return
            _flush()  # or what C has in its buffer comes out later
            os.dup2(self.saved, _STDOUT)
            if self.python is not None:
                before, meanwhile = self.python
                with suppress(OSError):
                    meanwhile.flush()
                if sys.stdout is meanwhile:
                    sys.stdout = before
            os.close(self.saved)
            self.saved, self.python = -1, None

    def _redirected(self) -> tuple[IO[str], IO[str]] | None:
        """Lets `sys.stdout` write to the saved descriptor if it writes to number 1."""
        before = sys.stdout
        try:
            if before.fileno() != _STDOUT:
                return None
        except (OSError, ValueError, AttributeError):  # no file, such as a notebook's
            return None
        sys.stdout = meanwhile = open(  # noqa: SIM115
            os.dup(self.saved),
            "w",
            encoding=before.encoding,
            errors=before.errors,
        )
        return before, meanwhile

    def forked(self) -> None:
        """Gives a process that was forked meanwhile its standard output back."""
        self.lock = threading.Lock()
        if self.users:
            self.users = 1
            self.leave()


_GUARD = _Guard()
os.register_at_fork(after_in_child=_GUARD.forked)


@contextmanager
def nothing_on_stdout() -> Generator[None]:
    """
    Lets nothing reach standard output that is written to its file descriptor, by C code of
    this process or by child processes; what Python prints to `sys.stdout` does. It also
    decorates functions, and may be nested and used in several threads.
    """
    _GUARD.enter()
    try:
        yield
    finally:
        _GUARD.leave()


def _flush() -> None:
    """Writes out what Python and C have in their buffers for standard output."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
