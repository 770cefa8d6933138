"""
Keeps the messages of solvers away from standard output. Standard output is for the
program's own results, for example MLIR text that the next tool of a pipe reads.
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
    Redirects file descriptor 1 from the first `enter` to the matching last `leave`.
    During this time, output of C and C++ code in any thread, and of child processes, is
    dropped, or goes to stderr with `DISTIR_DEBUG=1`. Output of Python is kept.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.saved = -1
        self.python: tuple[IO[str], IO[str]] | None = None
        """
        The original `sys.stdout`, and the file that replaces it during the redirection.
        None if `sys.stdout` was not replaced.
        """

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
        """
        Replaces `sys.stdout`, if it writes to descriptor 1, by a file on the saved
        descriptor. Returns the original and the new file, or None if nothing was
        replaced.
        """
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
        """
        Restores the standard output of a process that was forked during a redirection.
        """
        self.lock = threading.Lock()
        if self.users:
            self.users = 1
            self.leave()


_GUARD = _Guard()
os.register_at_fork(after_in_child=_GUARD.forked)


@contextmanager
def nothing_on_stdout() -> Generator[None]:
    """
    Returns a context manager or decorator that keeps output to file descriptor 1, by C
    code of this process or by child processes, away from standard output. This output
    is dropped, or goes to stderr with `DISTIR_DEBUG=1`. Output of Python to
    `sys.stdout` is kept. The context manager may be nested and used in several threads.
    """
    _GUARD.enter()
    try:
        yield
    finally:
        _GUARD.leave()


def _flush() -> None:
    """Flushes the buffers of Python and C for standard output."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
