"""Evaluates many plans on all cores."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import groupby
from math import ceil, inf
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.planning.grid.evaluate import Evaluator
from distir.planning.plans.plan import GridPlan, Plan
from distir.planning.plans.result import Result, Simulated
from distir.solver.clock import Clock
from distir.system.garbage import lasting_objects, no_garbage_collection

_PlanKind = TypeVar("_PlanKind", bound=Plan)

Source = Callable[[int], ModuleOp]
"""A function that makes the sequential program, with its cluster, for a batch size."""

_ROUNDS = 4
"""Groups of plans are so small that each process gets work at least this many times."""

_GARBAGE = 2_000_000
"""
The number of objects that a process allocates between two garbage collections. It
corresponds to about 200 MB.
"""


def _always(_: Plan) -> bool:
    """Returns True. It is the default for searches that leave no plan out."""
    return True


def run(
    source: Source,
    plans: Sequence[Plan],
    jobs: int = 0,
    longest: int | None = None,
    known: Mapping[Plan, Simulated] | None = None,
    clock: Clock | None = None,
    least: Callable[[], float] = float,
    is_promising: Callable[[Plan], bool] = _always,
    evaluator: Evaluator | None = None,
) -> Generator[list[Result]]:
    """
    Evaluates plans. Yields lists of results as they become known, in no particular
    order. A list can be empty.

    At most `jobs` processes run at a time (0: one per core). Grid plans that share work
    are evaluated together, at most `longest` plans in one process. On systems that
    cannot fork processes, `source` is pickled.

    - `known`: earlier results, with layouts that plans in `plans` may use;
    - `clock`: when it stops, an empty list is yielded once, so that the caller can
      close the iterator;
    - `least`: a function that returns the lowest throughput of interest, in samples/s;
      the search for layouts of slower plans may stop early. The function is called anew
      for each group of plans;
    - `is_promising`: a plan is left out if this function returns False when its turn
      comes;
    - `evaluator`: an evaluator of the same source, which keeps the preparations of
      earlier runs.

    The processes end when the iterator is closed or the user interrupts. Raises
    DistIRError if a process dies.
    """
    jobs = jobs or available_cores()
    known = known or {}
    groups = _groups(plans, longest, jobs)
    if not groups:
        return
    clock = clock or Clock()
    evaluator = evaluator or Evaluator(source)
    # What runs in this process cannot be ended.
    if clock.limit == inf and (jobs == 1 or len(groups) == 1):
        with lasting_objects(), no_garbage_collection():
            for plan in (plan for group in groups for plan in group):
                if is_promising(plan):
                    evaluator.least = least()
                    if gc.get_count()[0] > _GARBAGE:
                        gc.collect()
                    yield [evaluator.evaluate(plan, known.get(plan))]
        return
    # Only a forked process has the modules and programs of this one at once.
    forks = "fork" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if forks else None)
    if forks:
        evaluator.prepare([plan for plan in plans if is_promising(plan)])
    workers: dict[Connection, BaseProcess] = {}
    idle: list[Connection] = []
    try:
        for group in groups:
            while not idle and len(workers) == jobs:
                yield _next_results(workers, idle, evaluator, clock)
            group = [plan for plan in group if is_promising(plan)]
            refusals = [r for r in map(evaluator.refusal, group) if r is not None]
            if refusals:
                yield [*refusals]
                refused = {r.plan for r in refusals}
                group = [plan for plan in group if plan not in refused]
            if not group:
                continue
            if not idle:
                connection, other = context.Pipe()
                process = context.Process(target=_work, args=(evaluator, known, other))
                process.start()
                other.close()
                workers[connection] = process
                idle.append(connection)
            _assign(idle.pop(), group, least())
        while len(idle) < len(workers):
            yield _next_results(workers, idle, evaluator, clock)
    finally:
        for process in workers.values():
            process.terminate()
            process.join()


_DIED = (
    "search: a process died before it was done, most likely for lack of memory; "
    "use fewer processes (--jobs)"
)


def _assign(worker: Connection, group: Sequence[Plan], least: float) -> None:
    """
    Sends a group of plans to a worker process, with `least`, the lowest throughput of
    interest in samples/s. Raises DistIRError if the process died.
    """
    try:
        worker.send((group, least))
    except BrokenPipeError as error:
        raise DistIRError(_DIED) from error


def _next_results(
    workers: Mapping[Connection, BaseProcess],
    idle: list[Connection],
    evaluator: Evaluator,
    clock: Clock,
) -> list[Result]:
    """
    Waits for the next result of any worker process and returns it in a list. The
    evaluator learns from the result. Returns an empty list if the clock stops or if a
    worker has finished its group; the worker is then added to `idle`. Raises
    DistIRError if a process died.
    """
    left = clock.left if 0 < clock.left < inf else None
    ready = [c for c in wait(list(workers), left) if isinstance(c, Connection)]
    if not ready:
        return []
    worker = ready[0]
    try:
        found: Result | Exception | None = worker.recv()
    except (EOFError, ConnectionResetError) as error:
        raise DistIRError(_DIED) from error
    if isinstance(found, Result):
        evaluator.learn(found)
        return [found]
    if found is not None:
        raise found
    idle.append(worker)
    return []


def end_with_parent() -> None:
    """
    Makes this process end as soon as its parent process has ended in any way, because
    its work has no use then. A killed parent does not end its children itself.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def available_cores() -> int:
    """Returns the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _groups(plans: Sequence[Plan], longest: int | None, jobs: int) -> list[list[Plan]]:
    """
    Divides plans into groups that share work. Groups are small enough to keep all
    processes busy.

    Grid plans with the same division of the program share a group, for all batch sizes
    (`SharedStages`). Each plan with searched layouts is its own group, because it
    shares only results that are already `known`. Groups are in the order of their first
    plans.
    """
    grid = sorted((p for p in plans if isinstance(p, GridPlan)), key=_kin)
    size = max(1, len(grid) // (_ROUNDS * jobs))
    size = size if longest is None else min(size, longest)
    places = {plan: place for place, plan in enumerate(plans)}
    pieces: list[list[Plan]] = []
    for _, found in groupby(grid, key=lambda p: _kin(p)[:-1]):
        kin = list(found)
        pieces += _pieces(kin, ceil(len(kin) / ceil(len(kin) / size)))
    pieces.sort(key=lambda piece: min(places[plan] for plan in piece))
    groups: list[list[Plan]] = []
    for piece in pieces:
        if groups and len(groups[-1]) + len(piece) <= size:
            groups[-1] += ends_first(piece)
        else:
            groups.append(ends_first(piece))
    groups += [[plan] for plan in plans if not isinstance(plan, GridPlan)]
    return sorted(groups, key=lambda group: min(places[plan] for plan in group))


def _kin(plan: Plan) -> tuple[Any, ...]:
    """
    Returns a sort key that makes plans neighbours if they share most of their work. The
    key ignores the number of micro-batches.
    """
    batch, *rest = plan.shared
    return *rest, batch


def ends_first(plans: Sequence[_PlanKind]) -> list[_PlanKind]:
    """
    Orders plans by batch size for the interpolation of layouts between batch sizes
    (`Between`): the smallest and the largest batch size come first, then the sizes that
    halve the gaps.
    """
    batches = [list(same) for _, same in groupby(plans, key=lambda p: p.batch)]
    last = len(batches) - 1
    order, spans = [0, last], [(0, last)]
    for start, end in spans:
        middle = (start + end) // 2
        order.append(middle)
        if start < middle:
            spans += [(start, middle), (middle, end)]
    return [plan for place in dict.fromkeys(order) for plan in batches[place]]


def _pieces(plans: Sequence[Plan], size: int) -> Iterator[list[Plan]]:
    """
    Divides plans, in their order, into pieces of `size` plans. The last piece may be
    smaller.
    """
    return (list(plans[i : i + size]) for i in range(0, len(plans), size))


def _work(
    evaluator: Evaluator, known: Mapping[Plan, Simulated], connection: Connection
) -> None:
    """
    Evaluates the groups of plans that come through `connection`, in a separate process.
    Sends back each result, None after each group, and an exception at the end. Garbage
    collection is rare: programs are large structures, and the process saves a fifth of
    its time by not freeing them.
    """
    # An interrupt is for the process that started this one, which then ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    gc.freeze()
    gc.disable()
    try:
        while True:
            group, evaluator.least = connection.recv()
            for plan in group:
                if gc.get_count()[0] > _GARBAGE:
                    gc.collect()
                connection.send(evaluator.evaluate(plan, known.get(plan)))
            connection.send(None)
    except EOFError:
        pass  # nobody waits for results any more
    except Exception as error:
        connection.send(error)
