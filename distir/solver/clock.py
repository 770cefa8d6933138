"""Decides when a search stops: at a time limit, or when the user interrupts it."""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType
from typing import Any


class TimeIsOver(Exception):
    """
    The error of a search that reaches its time limit, or is interrupted by the user,
    before the search has a result.
    """


SEARCHING = 0.9
"""
The fraction of a time limit that is spent on the search. The rest is for the result.
"""


class Clock:
    """
    A clock that starts when it is created. As a context manager, in the main thread,
    the clock also catches the first interruption (SIGINT): `stopped` becomes true, and
    the search answers with its best result so far. A second interruption ends the
    program as usual.
    """

    def __init__(self, limit: float | None = None):
        self.begin = time.monotonic()
        self.limit = math.inf if limit is None else limit
        self.interrupted = False
        self._before: Any = None

    @property
    def seconds(self) -> float:
        """The seconds since the clock was created."""
        return time.monotonic() - self.begin

    @property
    def left(self) -> float:
        """
        The seconds until the time limit. The number is negative after the limit,
        infinite if there is no limit, and 0 after an interruption by the user.
        """
        return 0.0 if self.interrupted else self.limit - self.seconds

    @property
    def stopped(self) -> bool:
        """Whether the time is over or the user has interrupted the search."""
        return self.interrupted or self.left <= 0

    def check(self) -> None:
        """
        Raises TimeIsOver if the clock has stopped. For computations whose unfinished
        results are of no use.
        """
        if self.stopped:
            raise TimeIsOver

    def part(self, share: float, seconds: float = math.inf) -> Clock:
        """
        Returns a clock for a part of the work. The new clock stops after the fraction
        `share` of the remaining time, after `seconds`, or when this clock stops,
        whichever is first.
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
        """
        Returns the clock. This clock does not catch interruptions by the user, because
        the clock of the whole work catches them.
        """
        return self

    @property
    def stopped(self) -> bool:
        return self.whole.stopped or self.left <= 0
