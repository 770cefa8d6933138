"""
Runs one piece of work after another in the main thread, and cancels work for which no
client waits any more.

Like Ctrl-C, a cancellation raises an exception in the running code. Python allows this
only in the main thread, so another thread answers the requests.
"""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

Message = dict[str, Any]
"""A part of an answer, as data for JSON."""

Steps = Generator[Message, None, None]
"""Work that yields the parts of an answer."""

_SIGNAL = signal.SIGUSR1


_UNBROKEN = ("<frozen importlib", weakref.__file__, "<frozen _weakrefset")
"""The beginnings of the names of files whose functions must not be interrupted."""


class GivenUp(BaseException):
    """
    Raised in work that is cancelled, or that must stop because a more urgent job waits.
    """


@dataclass(eq=False)
class Job:
    """
    A piece of work.

    - `client`: the client that waits for the job; each client has at most one job of
      each urgency;
    - `steps`: does the work and yields the parts of the answer;
    - `put`: takes each part, and None at the end; called in the main thread;
    - `is_urgent`: whether the job goes before jobs that are not urgent, which pause
      between two parts.
    """

    client: str
    steps: Steps
    put: Callable[[Message | None], object]
    is_urgent: bool = True
    is_cancelled: bool = field(default=False, init=False)
    is_in_the_way: bool = field(default=False, init=False)


class Jobs:
    """
    The waiting jobs and the running job. Only the main thread may call `run`; any
    thread may call the other methods.
    """

    def __init__(self) -> None:
        self._waiting: list[Job] = []
        self._running: Job | None = None
        """The job that the signal may stop; None while the queue itself is at work."""
        self._changed = threading.Condition()
        self._stopped = False

    def submit(self, job: Job) -> None:
        """
        Adds a job. The new job replaces an earlier job of the same client and urgency.
        """
        with self._changed:
            for other in [*self._waiting, self._running]:
                if (
                    other is not None
                    and other.client == job.client
                    and other.is_urgent == job.is_urgent
                ):
                    other.is_cancelled = True
            self._waiting.append(job)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Cancels a job, unless it has ended."""
        job.is_cancelled = True
        with self._changed:
            self._changed.notify()

    def stop(self) -> None:
        """Ends `run` after the current part of the running job."""
        self._stopped = True
        with self._changed:
            self._changed.notify()

    def press(self, waiting: Job) -> None:
        """
        Stops the running job, for the job `waiting`, if the running job was cancelled
        or is less urgent. The caller repeats the call while the job waits, because code
        cannot be stopped at every point.
        """
        running = self._running
        if running is None or running is waiting:
            return
        running.is_in_the_way = waiting.is_urgent and not running.is_urgent
        if running.is_cancelled or running.is_in_the_way:
            signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)

    def run(self) -> None:
        """
        Runs jobs until `stop` is called; only for the main thread. Ctrl-C ends it,
        normally with KeyboardInterrupt.
        """
        before = signal.signal(_SIGNAL, self._on_signal)
        interrupts = signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            while not self._stopped:
                job = self._next()
                if job is not None and self._advance(job) and not self._waiting:
                    # Programs are cycles of objects, which only a collection frees.
                    gc.collect()
        finally:
            signal.signal(signal.SIGINT, interrupts)
            signal.signal(_SIGNAL, before)

    def _next(self) -> Job | None:
        """Takes the next job out of the queue. Waits for one if there is none."""
        with self._changed:
            if not self._waiting and not self._stopped:
                self._changed.wait()
            if not self._waiting:
                return None
            job = next((j for j in self._waiting if j.is_urgent), self._waiting[0])
            self._waiting.remove(job)
            return job

    def _advance(self, job: Job) -> bool:
        """
        Does the next step of a job, and puts the job back into the queue unless it has
        ended. Returns whether it has ended.
        """
        message: Message | None = None
        if not job.is_cancelled:
            job.is_in_the_way = False
            try:
                self._running = job
                message = next(job.steps, None)
                self._running = None
            except GivenUp:
                # An urgent job ends here. Others catch this, and are at their next part.
                message = {} if not job.is_urgent else None
        self._running = None
        if message is None or job.is_cancelled:
            job.steps.close()
            job.put(None)
            return True
        job.put(message)
        with self._changed:
            if job.is_urgent:
                self._waiting.insert(0, job)
            else:
                self._waiting.append(job)
        return False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        job = self._running
        if job is None or not (job.is_cancelled or job.is_in_the_way):
            return
        if not _must_end(frame):
            self._running = None
            raise GivenUp

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True
        if not _must_end(frame):
            raise KeyboardInterrupt


def _must_end(frame: FrameType | None) -> bool:
    """
    Whether the code that runs in `frame` must end before an exception is raised: an
    exception would leave a module half imported, and Python drops exceptions while it
    frees an object.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or code.co_filename.startswith(_UNBROKEN):
            return True
        frame = frame.f_back
    return False
