"""Evaluating many configurations, on all cores."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from itertools import groupby
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.passes.search.evaluate import Evaluator, Outcome
from distir.passes.search.grid import Configuration

Source = Callable[[int], ModuleOp]
"""Makes the sequential program, with its cluster, for a size of the batch."""

_GARBAGE = 1_000_000
"""Objects that a process makes before it looks for those that are dead, some 100 MB."""

_LONGEST = 16
"""Configurations that a process works on before it reports."""


def run(
    source: Source,
    configurations: Sequence[Configuration],
    jobs: int = 0,
    longest: int = _LONGEST,
) -> Generator[list[Outcome]]:
    """
    Evaluates configurations in `jobs` processes (0: one for each core) and gives the
    outcomes, `longest` at most at a time, as they are known, in no particular order. `source` is
    pickled. Configurations that share work are evaluated together. Closing the
    iterator, or an interrupt, stops the processes after what they are at. Raises DistIRError
    if a process dies.
    """
    jobs = jobs or available_cores()
    groups = _groups(configurations, longest)
    if not groups:
        return
    if jobs == 1 or len(groups) == 1:
        evaluator = Evaluator(source)
        for configuration in configurations:
            yield [evaluator.evaluate(configuration)]
        return
    # Only a forked process has the modules of this one at once.
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if "fork" in methods else None)
    stop = context.Event()
    pool = ProcessPoolExecutor(
        min(jobs, len(groups)), context, _start, initargs=(source, stop)
    )
    try:
        futures = [pool.submit(_evaluate, group) for group in groups]
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool as error:
        raise DistIRError(
            "search: a process died before it was done, most likely for lack of memory; "
            "use fewer processes (--jobs)"
        ) from error
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def available_cores() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _groups(
    configurations: Sequence[Configuration], longest: int
) -> list[list[Configuration]]:
    """Neighbours that share work, not too many of them."""
    groups: list[list[Configuration]] = []
    for _, found in groupby(configurations, key=lambda c: c.shared):
        group = list(found)
        for first in range(0, len(group), longest):
            groups.append(group[first : first + longest])
    return groups


# In a worker process: what it evaluates with, and whether it is to stop.
_worker: tuple[Evaluator, Any] | None = None


def _start(source: Source, stop: Any) -> None:
    global _worker
    # An interrupt is for the process that started this one, which then says stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A program is a large structure, dead at once when it has been simulated. Looking for
    # garbage meanwhile takes a fifth of the time.
    gc.collect()
    gc.freeze()
    gc.disable()
    _worker = (Evaluator(source), stop)


def _evaluate(group: Sequence[Configuration]) -> list[Outcome]:
    assert _worker is not None
    evaluator, stop = _worker
    outcomes: list[Outcome] = []
    for configuration in group:
        if stop.is_set():
            break
        outcomes.append(evaluator.evaluate(configuration))
        if gc.get_count()[0] > _GARBAGE:
            gc.collect()
    return outcomes
