"""The search behind `auto-parallel`: plans, bounds, and the simulator as the judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.errors import DistIRError
from distir.planning.auto.space import AXES, POLICIES_BY_COST, AutoSpace, own_axes
from distir.planning.grid.bounds import Bounds
from distir.planning.grid.evaluate import Evaluator
from distir.planning.grid.results import ranked
from distir.planning.grid.runner import run
from distir.planning.layouts.fitted import SECONDS
from distir.planning.plan import GridPlan, LayoutPlan, Plan, SearchOptions, overlaps
from distir.planning.plan_search import PlanSearch
from distir.planning.programs import Programs, trains
from distir.planning.requests import Requests
from distir.planning.result import Impossible, Simulated, simulated
from distir.solver.clock import SEARCHING, Clock

_WORTH = 1.1
"""
What takes that much longer than the best plan without overlap is not among the best, whatever
its neighbours: layouts are not searched to the end, and no plan next to it is refined.
"""

_WIDTH = 2
"""Plans of each kind whose neighbours are judged, in the end."""

_LONGEST = 6
"""Plans that share work and are judged by one process: as many as sizes of micro-batches."""

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
    known = [name for name, _ in own] or list(AXES)
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
        c=options.c or (1,),
        overlap=overlaps(options.overlap) or (False, True),
        buckets=options.buckets,
    )
    bounds = {
        batch: Bounds.of(
            programs(batch), cluster, devices, space.checkpoint if space.trains else ()
        )
        for batch in space.batches
    }
    return AutoSearch(programs, space, bounds, options.jobs, clock, heard)


class AutoSearch(PlanSearch):
    """
    Judges plans by simulation until the neighbours of the best ones are known, the time is
    over, or the user interrupts.

    The first round is the grid, and searched layouts on each mesh of all devices. Each
    further round judges the neighbours of the fastest plans that fit, and of the fastest
    that would be faster still but do not fit; while nothing fits, of those that need the
    least memory. Those of the fastest one of each kind come first, and of these the ones
    that are quickly judged: what refines a plan (overlap, searched stages) takes several times
    as long and gains a few per cent, so that it waits until the plan is among the best, as
    does what may fit only with less memory once something fits. A plan is not distributed at
    all if a bound says that it cannot be faster than the best one known or cannot fit.

    - `results`: what was judged; what it holds before the search is not judged again;
      `pruned`: how many plans were not;
    - `finished`: whether it ended by itself; `interrupted`: whether the user ended it.

    When the clock stops, the search ends, and evaluations that have begun end without a
    result; but the first plan that is possible is waited for.
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
        super().__init__(programs)
        self.space = space
        self.bounds = bounds
        self.jobs = jobs
        self.rounds = 0
        self._skipped: set[Plan] = set()
        self._expanded: set[tuple[Plan, bool]] = set()
        self._failed: set[Plan] = set()
        self._clock = clock or Clock()
        self._evaluator = Evaluator(programs)
        self._heard = heard or _nobody

    @property
    def pruned(self) -> int:
        """Plans that a bound ruled out."""
        return len(self._skipped - self.results.keys())

    @property
    def _ends(self) -> bool:
        """Whether the time is over, and some plan is possible."""
        return self._clock.stopped and bool(simulated(self.results.values()))

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

    def _start(self) -> list[Plan]:
        """
        The first round: of plans that cannot fit the variant with the lowest ZeRO stage
        that may. All of them if none may, so that there is something to say about them.
        """
        found: dict[Plan, None] = {}
        # Those first that are quickly judged and most likely possible.
        plans = sorted(
            self.space.first(), key=lambda c: (isinstance(c, LayoutPlan), c.p)
        )
        for plan in plans:
            variants = [plan]
            if self.space.trains and isinstance(plan, GridPlan) and plan.d > 1:
                variants += [replace(plan, zero=zero) for zero in self.space.zero]
            may_fit = [c for c in variants if self._may_fit(c)]
            found.update(dict.fromkeys(may_fit[:1]))
        return list(found) or plans

    def _judge(self, plans: Sequence[Plan]) -> bool:
        """Evaluates plans; False if the time was over before all of them were."""
        if self._ends:
            return False
        new = [plan for plan in plans if plan not in self.results]
        known: dict[Plan, Simulated] = {
            plan: result
            for plan in new
            if isinstance(plan, LayoutPlan)
            for result in simulated(self.results.values())
            if result.has_layouts_of(plan)
        }
        judged = run(
            self.programs,
            new,
            self.jobs,
            longest=_LONGEST,
            known=known,
            clock=self._clock,
            least=self._least,
            worth=self._is_promising,
            evaluator=self._evaluator,
        )
        for results in judged:
            for result in results:
                self.results[result.plan] = result
            if self._ends:
                judged.close()
                return False
        return True

    def _next(self) -> list[Plan]:
        """The neighbours to judge in the next round; none when the search is over."""
        if overlapped := self._overlapped_best():
            return [overlapped]
        for width in range(1, _WIDTH + 1):
            for refined in (False, True):
                found: dict[Plan, None] = {}
                for result in self._beam(width, refined):
                    self._expanded.add((result.plan, refined))
                    for plan in self.space.neighbours(result.plan):
                        if _is_refined(plan) == refined and self._may_help(
                            result, plan
                        ):
                            found[plan] = None
                if refined or self.best is None:
                    found.update(dict.fromkeys(self._smaller()))
                new = [plan for plan in found if plan not in self.results]
                promising = [plan for plan in new if self._is_promising(plan)]
                if promising:
                    return sorted(promising, key=_quick_first)
        return []

    def _overlapped_best(self) -> LayoutPlan | None:
        """
        The best plan with overlap, if its layouts were searched without, so that they are
        known, and it was not judged yet: the quickest way to a better one.
        """
        best = self.best
        if best is None or True not in self.space.overlap or best.plan.overlap:
            return None
        if not isinstance(best.plan, LayoutPlan):
            return None
        overlapped = replace(best.plan, overlap=True)
        return None if overlapped in self.results else overlapped

    def _smaller(self) -> list[LayoutPlan]:
        """What meshes on which no layouts were found may do with less memory."""
        failed = [
            plan
            for plan, result in self.results.items()
            if isinstance(plan, LayoutPlan) and isinstance(result, Impossible)
        ]
        new = [plan for plan in failed if plan not in self._failed]
        self._failed.update(new)
        return [smaller for plan in new for smaller in self.space.smaller(plan)]

    def _may_help(self, result: Simulated, plan: Plan) -> bool:
        """
        Whether a neighbour may be possible and better. A schedule that was possible for none
        of the plans with as many ranks needs more layers than there are. Where memory does
        not bind, what only saves memory is slower: recomputing, and accumulating over
        micro-batches without a pipeline.
        """
        alike = [
            isinstance(other, Simulated)
            for other in self.results.values()
            if (other.plan.p, other.plan.schedule) == (plan.p, plan.schedule)
        ]
        if plan.schedule and alike and not any(alike):
            return False
        limited = result.layouts is not None and result.layouts.limited
        if limited or not result.fits:
            return True
        c, policies = result.plan, self.space.checkpoint
        recomputes = c.checkpoint != plan.checkpoint and policies.index(
            plan.checkpoint
        ) > policies.index(c.checkpoint)
        return not recomputes and not (plan.p == 1 and plan.k > c.k)

    def _beam(self, width: int, refined: bool) -> list[Simulated]:
        """
        The plans, `width` of each kind, whose neighbours come next: those that are refined,
        of plans near the best, or those that are not.
        """
        fitting = ranked(self.results.values())
        large = [r for r in simulated(self.results.values()) if not r.fits]
        if fitting:
            fastest = fitting[0].throughput_samples_per_s
            large = [o for o in large if o.throughput_samples_per_s > fastest]
            large.sort(key=lambda o: -o.throughput_samples_per_s)
        else:
            large.sort(key=lambda o: o.peak_memory_bytes)
        first = [*_first(fitting, width), *_first(large, width)]
        if refined:
            least = self._least()
            first = [r for r in first if r.throughput_samples_per_s >= least]
        return [r for r in first if (r.plan, refined) not in self._expanded]

    def _is_promising(self, plan: Plan) -> bool:
        """
        Whether no bound rules a plan out; those that one does are counted. While nothing
        fits, even what cannot may show how little memory would do.
        """
        best = self.best
        if best is None or (self._may_fit(plan) and self._beats(plan, best)):
            return True
        self._skipped.add(plan)
        return False

    def _least(self) -> float:
        """Plans with a lower throughput are of no interest."""
        known = ranked(self.results.values())
        alike = [r.throughput_samples_per_s for r in known if not r.plan.overlap]
        return max(alike, default=0.0) / _WORTH

    def _may_fit(self, plan: Plan) -> bool:
        return self.bounds[plan.batch].may_fit(plan)

    def _beats(self, plan: Plan, best: Simulated) -> bool:
        """Whether it might have a higher throughput."""
        seconds = self.bounds[plan.batch].seconds_of(plan)
        return seconds * best.throughput_samples_per_s < plan.batch

    @property
    def gap(self) -> float | None:
        """
        How much longer the best plan takes than the bound of all plans for its batch, as a
        fraction; None without a plan or without a bound.
        """
        best = self.best
        if best is None or not self.bounds[best.plan.batch].seconds:
            return None
        return best.step_time_s / self.bounds[best.plan.batch].seconds - 1


def _quick_first(plan: Plan) -> tuple[bool, Plan]:
    """The order in which plans are judged: searches need to know what is worth it."""
    return isinstance(plan, LayoutPlan), plan


def _is_refined(plan: Plan) -> bool:
    """Whether a plan takes several times as long to judge as the same without that."""
    return plan.overlap or bool(plan.stages)


def _first(results: Sequence[Simulated], width: int) -> list[Simulated]:
    """
    The first so many of each kind (searched layouts, pipelines, others). Of plans that come
    to the same the first stands for all.
    """
    distinct: dict[tuple[float, int], Simulated] = {}
    for result in results:
        same = (result.step_time_s, result.peak_memory_bytes)
        distinct.setdefault(same, result)
    kinds: dict[tuple[bool, bool], list[Simulated]] = {}
    for result in distinct.values():
        kind = (isinstance(result.plan, LayoutPlan), result.plan.p > 1)
        kinds.setdefault(kind, []).append(result)
    return [result for kind in kinds.values() for result in kind[:width]]
