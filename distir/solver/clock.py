"""Decides when to stop: at a time limit, or when the user interrupts."""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType
from typing import Any


class TimeIsOver(Exception):
    """Raised if the time was over, or the user interrupted, before there was any answer."""


SEARCHING = 0.9
"""
The fraction of a time limit that is spent searching; the rest is for making the result.
"""


class Clock:
    """
    A clock that starts when it is made. As a context manager it also catches the first
    interruption (SIGINT): the search sees `stopped` and answers with what it has; a second
    one ends the program as usual. Only the main thread receives interruptions.
    """

    def __init__(self, limit: float | None = None):
        self.begin = time.monotonic()
        self.limit = math.inf if limit is None else limit
        self.interrupted = False
        self._before: Any = None

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.begin

    @property
    def left(self) -> float:
        """
        Seconds until the limit; negative after it, infinite without one, and 0 after an
        interruption.
        """
        return 0.0 if self.interrupted else self.limit - self.seconds

    @property
    def stopped(self) -> bool:
        """Whether the time is over or the user interrupted."""
        return self.interrupted or self.left <= 0

    def check(self) -> None:
        """
        Raises TimeIsOver if the clock has stopped, for work that is of no use unless
        finished.
        """
        if self.stopped:
            raise TimeIsOver

    def part(self, share: float, seconds: float = math.inf) -> Clock:
        """
        Returns a clock that stops after a fraction of the time that is left or after so
        many seconds, and with this one.
        """
        return _Part(self, min(self.left * share, seconds))

    def __enter__(self) -> Clock:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True
        self.__exit__()


class _Part(Clock):
    def __init__(self, whole: Clock, seconds: float):
        super().__init__(seconds)
        self.whole = whole

    @property
    def left(self) -> float:
        return min(self.whole.left, super().left)

    def __enter__(self) -> Clock:
        """Does nothing: the whole clock catches interruptions."""
        return self

    @property
    def stopped(self) -> bool:
        return self.whole.stopped or self.left <= 0
