"""Simulates points of a tuning (knob values and plans) on all cores."""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from distir.errors import DistIRError
from distir.planning.grid.bounds import Bounds
from distir.planning.grid.evaluate import Evaluator
from distir.planning.grid.runner import (
    available_cores,
    end_with_parent,
    ends_first,
)
from distir.planning.plans.plan import GridPlan
from distir.planning.plans.result import Result, Simulated, simulated
from distir.scheduling.tuning.programs import TunedPrograms
from distir.scheduling.tuning.space import Chosen, Point

_WORTH = 4
"""
The least number of plans of one program for which lower bounds are computed. Computing
them takes about as long as judging one plan.
"""


@dataclass(frozen=True)
class Trial:
    """A point and the result of its simulation."""

    point: Point
    result: Result


class Trials:
    """
    Simulates points in `jobs` processes (0: one per core). One process simulates all
    points with the same knob values, because they share programs and, for several batch
    sizes, layouts.
    """

    def __init__(self, programs: TunedPrograms, jobs: int = 0):
        self.programs = programs
        self._jobs = jobs or available_cores()
        self._chosen: Chosen | None = None
        self._evaluator: Evaluator | None = None

    def one(self, point: Point) -> Trial:
        """Simulates `point` in this process."""
        return Trial(point, self._evaluator_of(point.chosen).evaluate(point.plan))

    def many(
        self, points: Sequence[Point], least: float, *, prune: bool
    ) -> Iterator[list[Trial]]:
        """
        Simulates points and yields lists of trials as they become known. With `prune`,
        leaves out points that lower bounds rule out: points that do not fit into
        memory, and points that cannot exceed the throughput of the best earlier trial
        and `least` (samples/s). Raises DistIRError if a process dies.
        """
        groups = _groups(points)
        if self._jobs == 1 or len(groups) == 1:
            for group in groups:
                found = self.group(group, least, prune)
                least = max([least, *_throughputs(found)])
                yield found
            return
        forks = "fork" in multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("fork" if forks else None)
        pool = ProcessPoolExecutor(
            min(self._jobs, len(groups)), context, _begin, (self,)
        )
        waiting: set[Future[list[Trial]]] = set()
        try:
            for group in groups:
                # Not all at once: later ones know what earlier ones found.
                while len(waiting) > self._jobs:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    for each in done:
                        found = each.result()
                        least = max([least, *_throughputs(found)])
                        yield found
                waiting.add(pool.submit(_simulate, group, least, prune))
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (each.result() for each in done)
        except BrokenProcessPool as error:
            raise DistIRError(
                "tuning: a process died before it was done, most likely for lack of memory; "
                "use fewer processes (--jobs)"
            ) from error
        finally:
            for process in (pool._processes or {}).values():  # pyright: ignore[reportPrivateUsage]
                process.terminate()
            pool.shutdown(cancel_futures=True)

    def group(self, points: Sequence[Point], least: float, prune: bool) -> list[Trial]:
        """
        Simulates points with the same knob values in this process, and returns the
        trials. With `prune`, leaves out points that cannot fit into memory, or cannot
        reach `least` samples per second.
        """
        chosen = points[0].chosen
        evaluator, found = self._evaluator_of(chosen), list[Trial]()
        bounds: dict[int, Bounds] = {}
        plans = [point.plan for point in points]
        counts = Counter(plan.batch for plan in plans)
        for plan in ends_first(sorted(plans, key=lambda plan: plan.batch)):
            bound = bounds.get(plan.batch)
            if bound is not None and not (
                bound.may_fit(plan) and plan.batch > least * bound.seconds_of(plan)
            ):
                continue
            trial = Trial(Point(chosen, plan), evaluator.evaluate(plan))
            found.append(trial)
            least = max([least, *_throughputs([trial])])
            # A program that cannot be made has no bounds.
            known = isinstance(trial.result, Simulated) and plan.batch not in bounds
            if prune and known and counts[plan.batch] >= _WORTH:
                alike = [other for other in plans if other.batch == plan.batch]
                bounds[plan.batch] = self._bounds(chosen, alike)
        return found

    def _evaluator_of(self, chosen: Chosen) -> Evaluator:
        if self._evaluator is None or chosen != self._chosen:
            self._chosen, self._evaluator = chosen, self.programs.evaluator(chosen)
        return self._evaluator

    def _bounds(self, chosen: Chosen, plans: Sequence[GridPlan]) -> Bounds:
        """Returns lower bounds of the time and memory of all `plans`."""
        return Bounds.of(
            self.programs.sequential(chosen, plans[0].batch),
            self.programs.cluster,
            max(plan.d * plan.t * plan.p for plan in plans),
            sorted({plan.checkpoint for plan in plans}),
        )


def _groups(points: Sequence[Point]) -> list[list[Point]]:
    """
    Divides points, in their order, into groups that share programs and the division of
    these programs into stages.
    """
    found: dict[object, list[Point]] = {}
    for point in points:
        shared = point.plan.shared[1:]
        found.setdefault((point.chosen, shared), []).append(point)
    return list(found.values())


def _throughputs(trials: Sequence[Trial]) -> list[float]:
    results = simulated(trial.result for trial in trials)
    return [r.throughput_samples_per_s for r in results if r.fits]


_trials: Trials | None = None
"""
The `Trials` object that this process simulates with, if another process started it.
"""


def _begin(trials: Trials) -> None:
    """
    Prepares a process that simulates for another process: it ignores interrupts by the
    user, which the other process handles.
    """
    global _trials
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    _trials = trials
    # Programs are large structures, and dead soon.
    gc.freeze()
    gc.disable()


def _simulate(points: Sequence[Point], least: float, prune: bool) -> list[Trial]:
    assert _trials is not None
    gc.collect()
    return _trials.group(points, least, prune)
