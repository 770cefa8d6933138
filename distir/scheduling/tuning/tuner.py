"""
Tunes a schedule: simulates points (knob values and plans), measures some of them, and
keeps the best point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from math import inf
from pathlib import Path
from random import Random

from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.planning.grid.results import nothing_fits
from distir.planning.plans.result import Result, Simulated
from distir.scheduling.tuning.corrections import Candidate, Corrections
from distir.scheduling.tuning.journal import Measurement, TuningJournal
from distir.scheduling.tuning.programs import TunedPrograms
from distir.scheduling.tuning.space import Point, TuningSpace, plan_values
from distir.scheduling.tuning.trials import Trial, Trials

Score = tuple[bool, float]


def score_of(result: Result) -> Score:
    """
    Returns a key that is larger for a better result. A result that fits into memory is
    better than one that does not. Results that fit are compared by throughput, all
    other results by memory. An impossible plan is the worst result.
    """
    if not isinstance(result, Simulated):
        return (False, -inf)
    if result.fits:
        return (True, result.throughput_samples_per_s)
    return (False, -float(result.peak_memory_bytes))


def descend(
    space: TuningSpace, evaluate: Callable[[Point], Result | None], random: Random
) -> None:
    """
    Runs a randomised coordinate descent. The descent starts from a random point and
    moves to the best point along one coordinate after another, in random order, until
    no move improves the point. Then the descent starts again from a new random point.
    The function ends when `evaluate` returns None.
    """
    while True:
        point = space.drawn(random)
        result = evaluate(point)
        if result is None:
            return
        best = score_of(result)
        left = random.sample(space.coordinates, len(space.coordinates))
        while left:
            coordinate, before = left.pop(), point
            for other in space.along(before, coordinate):
                result = evaluate(other)
                if result is None:
                    return
                if score_of(result) > best:
                    point, best = other, score_of(result)
            if point != before:
                others = [c for c in space.coordinates if c != coordinate]
                left = random.sample(others, len(others))


MOST_POINTS = 10_000
"""The maximal number of points of a space that is searched exhaustively."""

EVALUATIONS = 100
"""The default number of points that a descent simulates."""

_IDLE = 10_000
"""A descent ends after this many points in a row that were known before."""


class Tuner:
    """
    Finds the best point of a space, by the simulator (`exhaustive`, `descent`) or by
    runs on the devices that start from the simulator's predictions (`measure`).

    - `trials`: the simulated results;
    - `measured`: the measurements;
    - `journal`: the file of trials and measurements. If a file is given, `trials` and
      `measured` include the entries from earlier tunings;
    - `on_progress`: a function that is called after each trial or measurement.
    """

    def __init__(
        self,
        space: TuningSpace,
        programs: TunedPrograms,
        jobs: int = 0,
        journal: TuningJournal | None = None,
        on_progress: Callable[[], None] | None = None,
    ):
        self.space = space
        self.programs = programs
        self.trials: dict[Point, Result] = {}
        self.measured: dict[Point, Measurement] = {}
        self._simulation = Trials(programs, jobs)
        self._journal = journal
        self._on_progress = on_progress
        for row in journal.results if journal else ():
            if isinstance(row, Trial):
                self.trials[row.point] = row.result
            else:
                self.measured[row.point] = row

    @property
    def ranked(self) -> list[Point]:
        """
        Returns the simulated points that fit into memory, highest throughput first.
        """
        fitting = {
            point: result
            for point, result in self.trials.items()
            if isinstance(result, Simulated) and result.fits
        }
        return sorted(
            fitting,
            key=lambda p: (
                -fitting[p].throughput_samples_per_s,
                fitting[p].peak_memory_bytes,
                str(p),
            ),
        )

    @property
    def best(self) -> Point | None:
        """
        The best point that fits into memory: the best measured point if there are
        measurements, else the best simulated point. None if no such point is known.
        """
        ran = {p: m.throughput for p, m in self.measured.items() if m.throughput}
        if ran:
            return max(ran, key=lambda point: ran[point] or 0.0)
        return next(iter(self.ranked), None)

    def exhaustive(self, *, prune: bool = True) -> None:
        """
        Simulates all points of the space. With `prune`, leaves out points that, by
        lower bounds, cannot be the best. Raises DistIRError if the space is too large.
        """
        if self.space.most > MOST_POINTS:
            raise DistIRError(
                f"tuning: the space has up to {self.space.most} points, more than "
                f"{MOST_POINTS}; use --tune descent, or fewer values"
            )
        missing = [p for p in self.space.points() if p not in self.trials]
        best = self.ranked[:1]
        results = [r for p in best if isinstance(r := self.trials[p], Simulated)]
        least = max((r.throughput_samples_per_s for r in results), default=0.0)
        if missing:
            for found in self._simulation.many(missing, least, prune=prune):
                self._add(found)

    def descent(self, evaluations: int = EVALUATIONS, seed: int = 0) -> None:
        """
        Simulates up to `evaluations` points of a randomised coordinate descent
        (`descend`). Points that were simulated before do not count towards
        `evaluations`.
        """
        left, idle = evaluations, 0

        def evaluate(point: Point) -> Result | None:
            nonlocal left, idle
            if point not in self.trials:
                if left == 0:
                    return None
                left, idle = left - 1, 0
                self._add([self._simulation.one(point)])
            idle += 1
            return None if idle > _IDLE else self.trials[point]

        descend(self.space, evaluate, Random(seed))

    def measure(
        self, runs: int, seconds: Callable[[Sequence[ModuleOp]], Sequence[float | None]]
    ) -> None:
        """
        Simulates all points and runs up to `runs` of them. After each run, the
        predictions are corrected (`Corrections`) to choose the next point. The method
        ends when no point is expected to be better. The points that earlier tunings
        measured count towards `runs`.

        `seconds` is a function that measures the step times of programs; an entry of
        its result is None if the program runs out of memory. Raises DistIRError if the
        space is too large or a program cannot be distributed.
        """
        self.exhaustive(prune=False)
        points = self.ranked
        if not points:
            return
        results = [r for p in points if isinstance(r := self.trials[p], Simulated)]
        candidates = [candidate(p, r) for p, r in zip(points, results, strict=True)]
        corrections = Corrections(candidates, float(results[0].memory_bytes))
        for place, point in enumerate(points):
            if point in self.measured:
                corrections.add(place, self.measured[point].throughput)
        while len(self.measured) < runs and (place := corrections.next()) is not None:
            program = self.programs.distributed(points[place])
            (found,) = seconds([program])
            measurement = Measurement(points[place], found)
            self._add([measurement])
            corrections.add(place, measurement.throughput)

    def nothing_fits(self) -> str:
        """Returns a message with the reason why there is no best point."""
        if self.measured:
            return (
                f"each of the {len(self.measured)} points that were run ran out of memory; "
                f"use devices with more memory, or points that need less"
            )
        return nothing_fits(list(self.trials.values()))

    def _add(self, found: Sequence[Trial | Measurement]) -> None:
        for row in found:
            if isinstance(row, Trial):
                self.trials[row.point] = row.result
            else:
                self.measured[row.point] = row
        if self._journal is not None:
            self._journal.add(found)
        if self._on_progress is not None:
            self._on_progress()


def candidate(point: Point, result: Simulated) -> Candidate:
    """
    Returns a simulated point (knob values and a plan) as a candidate for a measurement.
    """
    division = plan_values(point.plan)
    return Candidate(
        {**dict(point.chosen), "batch": division.pop("batch")},
        result.throughput_samples_per_s,
        float(result.peak_memory_bytes),
        division,
    )


def journal_of(
    path: Path | None, programs: TunedPrograms, task: str
) -> TuningJournal | nullcontext[None]:
    """
    Returns the journal in the file `path`, as a context manager. If `path` is None, the
    context manager yields None.
    """
    return TuningJournal(path, programs, task) if path else nullcontext()
