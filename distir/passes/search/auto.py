"""The search behind `auto-parallel`: plans, bounds, and the simulator as the judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from distir.passes.search.bounds import Bounds
from distir.passes.search.evaluate import Outcome
from distir.passes.search.grid import Configuration
from distir.passes.search.neighbours import AutoSpace
from distir.passes.search.programs import Programs
from distir.passes.search.results import ranked
from distir.passes.search.runner import run

_WIDTH = 3
"""Plans whose neighbours are judged at a time, of each kind."""

Heard = Callable[["AutoSearch"], None]


class AutoSearch:
    """
    Judges plans by simulation until the neighbours of the best ones are known, the time is
    over, or the user interrupts.

    The first round is the grid, and searched layouts on each mesh of all devices. Each
    further round judges the neighbours of the fastest plans that fit, and of the fastest
    that would be faster still but do not fit; while nothing fits, of those that need the
    least memory. A plan is not distributed at all if a bound says that it cannot be faster
    than the best one known or cannot fit.

    - `outcomes`: what was judged; `pruned`: how many plans were not;
    - `finished`: whether it ended by itself; `interrupted`: whether the user ended it.

    The time limit ends the search once a plan fits: there is an answer if there can be one.
    Evaluations that have begun are waited for.
    """

    def __init__(
        self,
        programs: Programs,
        space: AutoSpace,
        bounds: dict[int, Bounds],
        jobs: int = 0,
        seconds: float | None = None,
        heard: Heard | None = None,
    ):
        self.programs = programs
        self.space = space
        self.bounds = bounds
        self.jobs = jobs
        self.outcomes: dict[Configuration, Outcome] = {}
        self.finished = False
        self.interrupted = False
        self.rounds = 0
        self._skipped: set[Configuration] = set()
        self._expanded: set[Configuration] = set()
        self._deadline = None if seconds is None else monotonic() + seconds
        self._heard = heard or (lambda search: None)

    @property
    def best(self) -> Outcome | None:
        """The fastest plan that fits, if one is known."""
        found = ranked(self.outcomes.values())
        return found[0] if found else None

    @property
    def pruned(self) -> int:
        """Plans that a bound ruled out."""
        return len(self._skipped - self.outcomes.keys())

    @property
    def is_late(self) -> bool:
        """Whether the time is over."""
        return self._deadline is not None and monotonic() >= self._deadline

    def run(self) -> None:
        """Searches. Raises DistIRError for an empty space or if a process dies."""
        try:
            plans = self.space.first()
            if not any(map(self._may_fit, plans)):
                # Judged nevertheless, so that there is something to say about them.
                plans = sorted(plans, key=self._least_bytes)[: 2 * _WIDTH]
            else:
                plans = self._promising(plans)
            while plans:
                self.rounds += 1
                if not self._judge(plans):
                    return
                self._heard(self)
                plans = self._next()
            self.finished = True
        except KeyboardInterrupt:
            self.interrupted = True

    def _judge(self, plans: Sequence[Configuration]) -> bool:
        """Evaluates plans; False if the time was over before all of them were."""
        some_fit = any(o.fits for o in self.outcomes.values())
        if self.is_late and some_fit:
            return False
        judged = run(self.programs, plans, self.jobs, longest=4)
        for outcomes in judged:
            for outcome in outcomes:
                self.outcomes[outcome.configuration] = outcome
                some_fit = some_fit or outcome.fits
            if self.is_late and some_fit:
                judged.close()
                return False
        return True

    def _next(self) -> list[Configuration]:
        """The neighbours to judge in the next round; none when the search is over."""
        found: dict[Configuration, None] = {}
        for outcome in self._beam():
            self._expanded.add(outcome.configuration)
            for plan in self.space.neighbours(outcome.configuration):
                if plan not in self.outcomes:
                    found[plan] = None
        return sorted(self._promising(list(found)))

    def _beam(self) -> list[Outcome]:
        """The plans whose neighbours come next."""
        fitting = ranked(self.outcomes.values())
        large = [o for o in self.outcomes.values() if o.is_legal and not o.fits]
        if fitting:
            fastest = fitting[0].throughput_samples_per_s
            large = [o for o in large if o.throughput_samples_per_s > fastest]
            large.sort(key=lambda o: -o.throughput_samples_per_s)
        else:
            large.sort(key=lambda o: o.peak_memory_bytes)
        large = [o for o in large if o.configuration not in self._expanded]
        fitting = fitting[:_WIDTH]
        beam = [o for o in fitting if o.configuration not in self._expanded]
        return [*beam, *large[:_WIDTH]]

    def _promising(self, plans: Sequence[Configuration]) -> list[Configuration]:
        """Those that no bound rules out; the others are counted."""
        best = self.best
        kept = [
            c
            for c in plans
            if self._may_fit(c) and (best is None or self._beats(c, best))
        ]
        self._skipped.update(set(plans) - set(kept))
        return kept

    def _may_fit(self, plan: Configuration) -> bool:
        return self.bounds[plan.batch].may_fit(plan)

    def _least_bytes(self, plan: Configuration) -> float:
        return self.bounds[plan.batch].least_bytes(plan)

    def _beats(self, plan: Configuration, best: Outcome) -> bool:
        """Whether it might have a higher throughput."""
        seconds = self.bounds[plan.batch].seconds
        return seconds * best.throughput_samples_per_s < plan.batch

    @property
    def gap(self) -> float | None:
        """
        How much longer the best plan takes than the bound of all plans for its batch, as a
        fraction; None without a plan or without a bound.
        """
        best = self.best
        if best is None or not self.bounds[best.configuration.batch].seconds:
            return None
        return best.step_time_s / self.bounds[best.configuration.batch].seconds - 1
