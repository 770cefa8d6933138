"""Evaluating many plans, on all cores."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import groupby
from math import inf
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.planning.grid.evaluate import Evaluator
from distir.planning.plan import GridPlan, Plan
from distir.planning.result import Result, Simulated
from distir.solver.clock import Clock

Source = Callable[[int], ModuleOp]
"""Makes the sequential program, with its cluster, for a size of the batch."""

_LONGEST = 24
"""Plans that a process works on."""

_ROUNDS = 6
"""How often each of the processes at a time is to get something to do, at least."""

_GARBAGE = 2_000_000
"""Objects that a process makes before it looks for those that are dead, some 200 MB."""


def run(
    source: Source,
    plans: Sequence[Plan],
    jobs: int = 0,
    longest: int = _LONGEST,
    known: Mapping[Plan, Simulated] | None = None,
    clock: Clock | None = None,
    least: Callable[[], float] = float,
) -> Generator[list[Result]]:
    """
    Evaluates plans in `jobs` processes at a time (0: one for each core) and gives
    the results as they are known, some at a time or none, in no particular order. When the
    clock stops, no results are given once, so that the iterator can be closed then.
    Plans that share work are evaluated together, in a process of their own or with others of
    their batch (where processes cannot be forked, `source` is pickled); `known` are results
    before whose layouts some of them can use, and `least` says, whenever it is asked, below
    which throughput plans are of no interest (`Evaluator`). Closing the iterator, or
    an interrupt, ends the processes. Raises DistIRError if a process dies.
    """
    jobs = jobs or available_cores()
    known = known or {}
    groups = _groups(plans, longest, jobs)
    if not groups:
        return
    clock = clock or Clock()
    # What runs in this process cannot be ended.
    if clock.limit == inf and (jobs == 1 or len(groups) == 1):
        evaluator = Evaluator(source)
        for plan in plans:
            evaluator.least = least()
            yield [evaluator.evaluate(plan, known.get(plan))]
        return
    # Only a forked process has the modules and programs of this one at once.
    forks = "fork" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if forks else None)
    evaluator = Evaluator(source)
    running: dict[Connection, BaseProcess] = {}
    try:
        for group in groups:
            while len(running) == jobs:
                yield _next_results(running, clock)
            evaluator.least = least()
            if forks:
                evaluator.prepare(group)
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_work, args=(evaluator, group, known, sender)
            )
            process.start()
            sender.close()
            running[receiver] = process
        while running:
            yield _next_results(running, clock)
    finally:
        for process in running.values():
            process.terminate()
            process.join()


def _next_results(running: dict[Connection, BaseProcess], clock: Clock) -> list[Result]:
    """
    The next result of some process; none if that is done and leaves those that run, or if
    the clock stops meanwhile.
    """
    left = clock.left if 0 < clock.left < inf else None
    ready = [c for c in wait(list(running), left) if isinstance(c, Connection)]
    if not ready:
        return []
    receiver = ready[0]
    try:
        found: Result | Exception | None = receiver.recv()
    except EOFError as error:
        raise DistIRError(
            "search: a process died before it was done, most likely for lack of memory; "
            "use fewer processes (--jobs)"
        ) from error
    if isinstance(found, Result):
        return [found]
    running.pop(receiver).join()
    if found is not None:
        raise found
    return []


def available_cores() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _groups(plans: Sequence[Plan], longest: int, jobs: int) -> list[list[Plan]]:
    """
    Neighbours that share work, not too many of them; and where there is enough to do for all
    processes, several such groups of one size of the batch, as a process takes its time to
    begin and to end.
    """
    together = min(longest, len(plans) // (_ROUNDS * jobs))
    groups: list[list[Plan]] = []
    for _, found in groupby(plans, key=lambda c: c.shared):
        group = list(found)
        before = groups[-1] if groups else []
        if (
            before
            and len(before) + len(group) <= together
            and before[0].batch == group[0].batch
            and all(isinstance(plan, GridPlan) for plan in (*before, *group))
        ):
            before += group
            continue
        for first in range(0, len(group), longest):
            groups.append(group[first : first + longest])
    return groups


def _work(
    evaluator: Evaluator,
    group: Sequence[Plan],
    known: Mapping[Plan, Simulated],
    sender: Connection,
) -> None:
    """
    In a process of its own: sends each result, and None in the end. A program is a large structure, dead when
    it has been simulated; that it need not be taken apart, as all of the process ends soon,
    saves a fifth of the time.
    """
    # An interrupt is for the process that started this one, which then ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    gc.disable()
    try:
        for plan in group:
            if gc.get_count()[0] > _GARBAGE:
                gc.collect()
            sender.send(evaluator.evaluate(plan, known.get(plan)))
    except Exception as error:
        sender.send(error)
    else:
        sender.send(None)
