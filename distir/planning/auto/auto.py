"""The search behind `auto-parallel`: plans, bounds, and the simulator as the judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.errors import DistIRError
from distir.planning.auto.space import AXES, POLICIES_BY_COST, AutoSpace, own_axes
from distir.planning.configuration import Configuration, SearchOptions, overlaps
from distir.planning.grid.bounds import Bounds
from distir.planning.grid.evaluate import Outcome, reusable
from distir.planning.grid.results import ranked
from distir.planning.grid.runner import run
from distir.planning.layouts.fitted import SECONDS
from distir.planning.programs import Programs, trains
from distir.planning.requests import Requests
from distir.solver.clock import SEARCHING, Clock

_WIDTH = 2
"""Plans whose neighbours are judged at a time, of each kind."""

Heard = Callable[["AutoSearch"], None]


def _nobody(search: AutoSearch) -> None:
    """Hears of each round, and does nothing."""


def auto_search(
    modules: Sequence[ModuleOp],
    cluster: ClusterOp,
    options: SearchOptions | None = None,
    *,
    requests: Requests | None = None,
    degrees: Sequence[tuple[int, int, int]] = (),
    time_limit: float | None = None,
    heard: Heard | None = None,
) -> AutoSearch:
    """
    A search for the best plan for one of these programs, one for each size of the batch, on
    a cluster. Empty options may take any value; `degrees` are the only (d, t, p). The layouts
    of a plan are searched for a quarter of the time at most; without a limit
    solving for them takes 20 s. Raises DistIRError.
    """
    clock = Clock(time_limit and SEARCHING * time_limit)
    options = options or SearchOptions()
    requests = requests or Requests()
    if time_limit is not None:
        requests = replace(requests, limit=max(1.0, time_limit / 4))
    elif requests.seconds is None:
        requests = replace(requests, seconds=SECONDS)
    programs = Programs.of(modules, cluster, options.profile, requests)
    devices = options.world_size or cluster.size
    if devices > cluster.size:
        raise DistIRError(
            f"auto-parallel: {devices} devices were asked for, but cluster "
            f"@{cluster.sym_name.data} has {cluster.size}"
        )
    trained = {trains(module) for module in modules}
    if len(trained) > 1:
        raise DistIRError("some of the programs are training steps and some are not")
    if trained == {False} and (
        any(options.zero) or any(c != "none" for c in options.checkpoint)
    ):
        raise DistIRError(
            "auto-parallel: ZeRO and activation checkpointing are for training steps, but "
            "the program updates no argument (dist.updates); leave them out"
        )
    own = own_axes(modules)
    known = [text.partition("=")[0] for text in own.split(",")] if own else list(AXES)
    for module in modules:
        requests.check(module, known)
    space = AutoSpace(
        batches=sorted(programs.texts),
        trains=trained == {True},
        devices=devices,
        degrees=degrees,
        own_axes=own,
        asked_axes=requests.axes,
        micro_batches=options.micro_batches,
        zero=options.zero or (0, 1, 2, 3),
        checkpoint=options.checkpoint or POLICIES_BY_COST,
        schedules=options.schedules,
        overlap=overlaps(options.overlap) or (False, True),
    )
    bounds = {
        batch: Bounds.of(programs(batch), cluster, devices) for batch in space.batches
    }
    return AutoSearch(programs, space, bounds, options.jobs, clock, heard)


class AutoSearch:
    """
    Judges plans by simulation until the neighbours of the best ones are known, the time is
    over, or the user interrupts.

    The first round is the grid, and searched layouts on each mesh of all devices. Each
    further round judges the neighbours of the fastest plans that fit, and of the fastest
    that would be faster still but do not fit; while nothing fits, of those that need the
    least memory. A plan is not distributed at all if a bound says that it cannot be faster
    than the best one known or cannot fit.

    - `outcomes`: what was judged; what it holds before the search is not judged again;
      `pruned`: how many plans were not;
    - `finished`: whether it ended by itself; `interrupted`: whether the user ended it.

    When the clock stops, the search ends, and evaluations that have begun end without an
    outcome; but the first plan that is possible is waited for.
    """

    def __init__(
        self,
        programs: Programs,
        space: AutoSpace,
        bounds: dict[int, Bounds],
        jobs: int = 0,
        clock: Clock | None = None,
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
        self._clock = clock or Clock()
        self._heard = heard or _nobody

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
    def _ends(self) -> bool:
        """Whether the time is over, and some plan is possible."""
        return self._clock.stopped and any(o.is_legal for o in self.outcomes.values())

    def run(self) -> None:
        """Searches. Raises DistIRError for an empty space or if a process dies."""
        try:
            plans = self._start()
            while plans:
                self.rounds += 1
                if not self._judge(plans):
                    return
                self._heard(self)
                plans = self._next()
            self.finished = True
        except KeyboardInterrupt:
            self.interrupted = True

    def _start(self) -> list[Configuration]:
        """
        The first round: of plans that cannot fit the variant with the lowest ZeRO stage
        that may. All of them if none may, so that there is something to say about them.
        """
        found: dict[Configuration, None] = {}
        # Those first that are quickly judged and most likely possible.
        plans = sorted(self.space.first(), key=lambda c: (bool(c.axes), c.p))
        for plan in plans:
            variants = [plan]
            if self.space.trains and plan.d > 1:
                variants += [replace(plan, zero=zero) for zero in self.space.zero]
            may_fit = [c for c in variants if self._may_fit(c)]
            found.update(dict.fromkeys(may_fit[:1]))
        return list(found) or plans

    def _judge(self, plans: Sequence[Configuration]) -> bool:
        """Evaluates plans; False if the time was over before all of them were."""
        if self._ends:
            return False
        new = [plan for plan in plans if plan not in self.outcomes]
        known = {
            plan: outcome
            for plan in new
            if plan.axes
            for outcome in self.outcomes.values()
            if reusable(outcome, plan)
        }
        judged = run(
            self.programs, new, self.jobs, longest=4, known=known, clock=self._clock
        )
        for outcomes in judged:
            for outcome in outcomes:
                self.outcomes[outcome.configuration] = outcome
            if self._ends:
                judged.close()
                return False
        return True

    def _next(self) -> list[Configuration]:
        """The neighbours to judge in the next round; none when the search is over."""
        found: dict[Configuration, None] = {}
        for outcome in self._beam():
            self._expanded.add(outcome.configuration)
            for plan in self.space.neighbours(outcome.configuration):
                if plan not in self.outcomes and self._may_help(outcome, plan):
                    found[plan] = None
        for plan in self._smaller():
            if plan not in self.outcomes:
                found[plan] = None
        return sorted(self._promising(list(found)))

    def _smaller(self) -> list[Configuration]:
        """What meshes on which no layouts were found may do with less memory."""
        failed = [
            o.configuration
            for o in self.outcomes.values()
            if o.configuration.axes and not o.is_legal
        ]
        new = [c for c in failed if c not in self._expanded]
        self._expanded.update(new)
        return [plan for c in new for plan in self.space.smaller(c)]

    def _may_help(self, outcome: Outcome, plan: Configuration) -> bool:
        """
        Whether a neighbour may be possible and better. A schedule that was possible for none
        of the plans with as many ranks needs more layers than there are. Where memory did
        not decide on searched layouts, what only saves memory is slower: recomputing, and
        accumulating over micro-batches without a pipeline.
        """
        c = outcome.configuration
        alike = [
            o.is_legal
            for o in self.outcomes.values()
            if (o.configuration.p, o.configuration.schedule) == (plan.p, plan.schedule)
        ]
        if plan.schedule and alike and not any(alike):
            return False
        if outcome.layouts is None or outcome.layouts.limited or not outcome.fits:
            return True
        policies = self.space.checkpoint
        recomputes = c.checkpoint != plan.checkpoint and policies.index(
            plan.checkpoint
        ) > policies.index(c.checkpoint)
        return not recomputes and not (plan.p == 1 and plan.k > c.k)

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
        return [*self._first(fitting), *self._first(large)]

    def _first(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """
        The first of each kind (searched layouts, pipelines, others), but those whose
        neighbours are known. Of plans that come to the same the first stands for all.
        """
        distinct: dict[tuple[float, int], Outcome] = {}
        for outcome in outcomes:
            same = (outcome.step_time_s, outcome.peak_memory_bytes)
            distinct.setdefault(same, outcome)
        kinds: dict[tuple[bool, bool], list[Outcome]] = {}
        for outcome in distinct.values():
            c = outcome.configuration
            kinds.setdefault((bool(c.axes), c.p > 1), []).append(outcome)
        found = [o for kind in kinds.values() for o in kind[:_WIDTH]]
        return [o for o in found if o.configuration not in self._expanded]

    def _promising(self, plans: Sequence[Configuration]) -> list[Configuration]:
        """
        Those that no bound rules out; the others are counted. While nothing fits, even what
        cannot may show how little memory would do.
        """
        best = self.best
        kept = [
            c
            for c in plans
            if best is None or (self._may_fit(c) and self._beats(c, best))
        ]
        self._skipped.update(set(plans) - set(kept))
        return kept

    def _may_fit(self, plan: Configuration) -> bool:
        return self.bounds[plan.batch].may_fit(plan)

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
