"""Tuning a schedule: trials and measurements, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from random import Random

from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.planning.grid.results import nothing_fits
from distir.planning.result import Result, Simulated
from distir.scheduling.tuning.corrections import Candidate, Corrections
from distir.scheduling.tuning.descent import descend
from distir.scheduling.tuning.journal import Measurement, TuningJournal
from distir.scheduling.tuning.programs import TunedPrograms
from distir.scheduling.tuning.space import Point, TuningSpace, plan_values
from distir.scheduling.tuning.trials import Trial, Trials

MOST_POINTS = 10_000
"""A space with more points is not searched exhaustively."""

EVALUATIONS = 100
"""How many points a descent simulates if nothing else is asked for."""

_IDLE = 10_000
"""After that many points on end that it knows a descent has been everywhere."""


class Tuner:
    """
    Finds the best point of a space: by the simulator (`exhaustive`, `descent`), or by runs
    that begin with what the simulator predicts (`measure`). `trials` are the results by the
    simulator, `measured` those of runs, of earlier tunings too, if there is a `journal`.
    `heard` is told after each of them.
    """

    def __init__(
        self,
        space: TuningSpace,
        programs: TunedPrograms,
        jobs: int = 0,
        journal: TuningJournal | None = None,
        heard: Callable[[], None] | None = None,
    ):
        self.space = space
        self.programs = programs
        self.trials: dict[Point, Result] = {}
        self.measured: dict[Point, Measurement] = {}
        self._simulation = Trials(programs, jobs)
        self._journal = journal
        self._heard = heard
        for row in journal.results if journal else ():
            if isinstance(row, Trial):
                self.trials[row.point] = row.result
            else:
                self.measured[row.point] = row

    @property
    def ranked(self) -> list[Point]:
        """The simulated points that fit into memory, the highest throughput first."""
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
        """The best point that fits, if one is known: of those that were run, if any was."""
        ran = {p: m.throughput for p, m in self.measured.items() if m.throughput}
        if ran:
            return max(ran, key=lambda point: ran[point] or 0.0)
        return next(iter(self.ranked), None)

    def exhaustive(self, *, prune: bool = True) -> None:
        """
        Simulates all points but, with `prune`, those that bounds rule out. Raises DistIRError
        for a space that is too large.
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
        Simulates so many points at most, those that a randomised coordinate descent comes to
        (`descend`); those that are known do not count.
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
        Simulates all points, and runs up to so many: after each run predictions are
        corrected (`Corrections`), and the run that is expected to be worth most comes next, until even an
        optimist expects nothing better. `seconds` times steps of programs; None for one that runs
        out of memory. Runs of earlier tunings count. Raises DistIRError.
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
        """Why there is no best point."""
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
        if self._heard is not None:
            self._heard()


def candidate(point: Point, result: Simulated) -> Candidate:
    """A simulated point as one that may be measured."""
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
    """The journal in a file, to be entered; nothing where there is none."""
    return TuningJournal(path, programs, task) if path else nullcontext()
