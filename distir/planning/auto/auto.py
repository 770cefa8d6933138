"""The search behind `auto-parallel`: plans, bounds, and the simulator as the judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp, KindOp
from distir.errors import DistIRError
from distir.planning.auto.effects import Effects, enough, forecast
from distir.planning.auto.leaders import leaders, offloads, refinements, sorted_results
from distir.planning.auto.recomputation import partly_recomputed
from distir.planning.auto.space import AXES, AutoSpace, own_axes, with_micro_batches
from distir.planning.distribution.context import context_degrees
from distir.planning.distribution.experts import expert_degrees
from distir.planning.grid.bounds import Bounds
from distir.planning.grid.evaluate import Evaluator
from distir.planning.grid.results import ranked
from distir.planning.grid.runner import run
from distir.planning.layouts.fitted import SECONDS
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.plan import GridPlan, LayoutPlan, Plan
from distir.planning.plans.plan_search import PlanSearch
from distir.planning.plans.programs import Programs, trains
from distir.planning.plans.result import Impossible, Result, Simulated, simulated
from distir.planning.requests import Requests
from distir.program import entry_function, parameters_of_states
from distir.solver.clock import SEARCHING, Clock

_WORTH = 1.1
"""
A plan that takes this many times as long as the best one without overlap cannot become the
best through its neighbours: the search of its layouts is cut short, and no neighbour of it
that refines it is tried.
"""

_WIDTH = 2
"""How many plans of each kind have their neighbours judged in the last rounds."""

_LONGEST = 6
"""
At most so many plans that share work are judged by one process: as many as there are usual
sizes of micro-batches.
"""

OnProgress = Callable[["AutoSearch"], None]

OnForecast = Callable[[float, float], None]
"""Takes the least and the most seconds that a search will take."""


def _nobody(search: AutoSearch) -> None:
    """The default for a caller that does not follow the rounds: does nothing."""


def auto_search(
    modules: Sequence[ModuleOp],
    cluster: ClusterOp,
    options: SearchOptions | None = None,
    *,
    requests: Requests | None = None,
    degrees: Sequence[tuple[int, int, int]] = (),
    time_limit: float | None = None,
    on_progress: OnProgress | None = None,
    on_forecast: OnForecast | None = None,
    on_best: OnProgress | None = None,
) -> AutoSearch:
    """
    Prepares a search for the best plan on a cluster, for one of these programs, which
    differ in the size of their batch.

    An empty option may take any value; `degrees`, if given, are the only (d, t, p) tried.
    `time_limit` is in seconds: the layouts of one plan are searched for at most a quarter
    of it, and without it solving for them takes at most 20 s. `on_progress` is called after each
    round, `on_forecast` once, when the time that is left can be told, `on_best` whenever a plan
    turns out to be the best so far. Raises DistIRError for
    options that do not fit together, the programs or the cluster.
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
        any(options.zero)
        or any(c != "none" for c in options.checkpoint)
        or "on" in options.offload_states
    ):
        raise DistIRError(
            "auto-parallel: ZeRO, activation checkpointing and offloading are for training steps, "
            "but the program updates no argument (dist.updates); leave them out"
        )
    own = own_axes(modules)
    known = [name for name, _ in own] or list(AXES)
    for module in modules:
        requests.check(module, known)
    defaults: dict[str, Any] = {}
    if not options.e:
        defaults["e"] = expert_degrees(modules, devices)
    if not options.offload_states and not _may_offload(modules, cluster):
        defaults["offload_states"] = (False,)
    space = AutoSpace(
        batches=sorted(programs.texts),
        trains=trained == {True},
        devices=devices,
        degrees=degrees,
        own_axes=own,
        asked_axes=requests.axes,
        next_c=options.c or context_degrees(modules, devices),
        **defaults | options.choices(),
    )
    bounds = {
        batch: Bounds.of(
            programs(batch), cluster, devices, space.checkpoint if space.trains else ()
        )
        for batch in space.batches
    }
    return AutoSearch(
        programs,
        space,
        bounds,
        options.jobs,
        clock,
        on_progress,
        on_forecast,
        on_best,
    )


class AutoSearch(PlanSearch):
    """
    Judges plans by simulation until the neighbours of the best ones are known, the time is
    over, or the user interrupts.

    The first round is the grid, and searched layouts on each mesh of all devices; before that,
    for a model that is too large for one device, plans that need little memory, with their
    neighbours. Each further round judges the neighbours of the fastest plans that fit, unless
    they are far slower than the best (`leaders`), and of
    the fastest that would be faster still but do not fit; while nothing fits, of those that need
    the least memory. Those of the fastest one of each kind come first, and of these those that
    most likely fit and are the fastest, as changes of options did to others (`Effects`).
    What refines a plan (overlap, searched stages) takes several times as long and gains a few
    per cent, so that it waits until the plan is among the best. A neighbour that is better
    than all plans before ends the round, as its own neighbours come first. Meshes on which no
    layouts fit are tried with more micro-batches: in the end, or first, two in each round,
    while nothing fits. A plan is not distributed at all if a bound says that it cannot be faster than the best one known or cannot fit.

    - `results`: the judged plans; those it holds before the search are not judged again;
      `pruned`: how many plans were not;
    - `finished`: whether it ended by itself; `interrupted`: whether the user ended it;
      `is_running`: whether it has not ended yet.

    When the clock stops, the search ends, and evaluations that have begun have no result; but
    the first plan that is possible is waited for.
    """

    def __init__(
        self,
        programs: Programs,
        space: AutoSpace,
        bounds: dict[int, Bounds],
        jobs: int = 0,
        clock: Clock | None = None,
        on_progress: OnProgress | None = None,
        on_forecast: OnForecast | None = None,
        on_best: OnProgress | None = None,
    ):
        super().__init__(programs)
        self.space = space
        self.bounds = bounds
        self.jobs = jobs
        self.rounds = 0
        self.is_running = False
        self._skipped: set[Plan] = set()
        self._effects = Effects()
        # The neighbours of the round, each with the result of the plan whose neighbour it is.
        self._origins: dict[Plan, Simulated] = {}
        # Whether a plan of the round turned out to be better than all before.
        self._improved = False
        self._clock = clock or Clock()
        self._evaluator = Evaluator(programs)
        self._on_progress = on_progress or _nobody
        self._on_forecast = on_forecast
        self._on_best = on_best or _nobody
        self._began = 0.0
        self._first: list[Plan] = []
        # Plans that are judged only until something fits.
        self._surest: set[GridPlan] = set()

    @property
    def pruned(self) -> int:
        """The number of plans that a bound ruled out."""
        return len(self._skipped - self.results.keys())

    @property
    def _ends(self) -> bool:
        """Whether the time is over and some plan is known that is possible."""
        return self._clock.stopped and bool(simulated(self.results.values()))

    def run(self) -> None:
        """
        Searches until the end. Raises DistIRError if there is no plan to try or if a
        process dies.
        """
        self.is_running = True
        try:
            self._run()
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self.is_running = False

    def _run(self) -> None:
        later = self._start()
        plans = self._frugal()
        self._first, self._began = [*plans, *later], self._clock.seconds
        while plans or later:
            if not plans:
                plans, later = later, []
            self.rounds += 1
            if not self._judge(plans):
                return
            self._on_progress(self)
            plans = self._next()
        self.finished = True

    def _start(self) -> list[Plan]:
        """
        Returns the plans of the first round. A plan that cannot fit is replaced by its variant
        with the lowest ZeRO stage that may fit, else with states in the host's memory. If no
        plan may fit, all are returned, so that the error can say how much memory is missing.
        """
        found: dict[Plan, None] = {}
        # First those that are judged quickly and most likely possible.
        plans = sorted(
            self.space.first(), key=lambda c: (isinstance(c, LayoutPlan), c.p)
        )
        for plan in plans:
            variants: list[Plan] = [plan]
            if self.space.trains and isinstance(plan, GridPlan):
                stages = self.space.zero if plan.d * plan.e > 1 else ()
                grid = [plan, *(replace(plan, zero=zero) for zero in stages)]
                if True in self.space.offload_states:
                    grid += [replace(each, offload_states=True) for each in grid]
                variants = [*grid]
            may_fit = [c for c in variants if self._may_fit(c)]
            found.update(dict.fromkeys(may_fit[:1]))
        return list(found) or plans

    def _frugal(self) -> list[Plan]:
        """
        Returns the plans that are tried first for a training step that is too large for one
        device. First those that most surely fit, until one does, so that there is a plan
        however short the time; then a few that need little memory and are faster. Most of the
        first round would not fit either, so the neighbours of these are a better start.
        """
        large = [
            batch
            for batch in self.space.batches
            if self.bounds[batch].parameters + self.bounds[batch].states
            > self.bounds[batch].memory
        ]
        surest = self.space.surest(large, self._may_fit)
        frugal = list(self.space.frugal(large, self._may_fit))
        self._surest = set(surest) - set(frugal)
        return list(dict.fromkeys([*surest, *frugal]))

    def _judge(self, plans: Sequence[Plan]) -> bool:
        """
        Evaluates plans; returns False if the time was over before all of them were
        evaluated.
        """
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
        running = run(
            self.programs,
            new,
            self.jobs,
            longest=_LONGEST,
            known=known,
            clock=self._clock,
            least=self._least,
            is_promising=self._is_due,
            evaluator=self._evaluator,
        )
        with closing(running) as judged:
            for results in judged:
                before = self.best
                for result in results:
                    self._take(result)
                self._tell_forecast()
                if self._ends:
                    return False
                best = self.best
                if best is not None and (before is None or best.plan != before.plan):
                    self._on_best(self)
        return True

    def _take(self, result: Result) -> None:
        """Takes note of a result, and of what it says about the change that led to it."""
        self.results[result.plan] = result
        origin = self._origins.get(result.plan)
        if origin is not None:
            self._effects.learn(origin, result)
            known = sorted_results(self._followed.values(), refined=True)
            self._improved |= result in [found[0] for found in known if found]

    def _tell_forecast(self) -> None:
        """Says how long the search will take, once, when that can be told."""
        judged = len(self.results)
        if self._on_forecast is not None and enough(judged, self._first):
            spent = self._clock.seconds - self._began
            self._on_forecast(*forecast(self._first, judged, spent))
            self._on_forecast = None

    def _next(self) -> list[Plan]:
        """
        Returns the neighbours to judge in the next round, the most promising ones first;
        none when the search is over.
        """
        self._improved = False
        self._origins = {}
        policies = self.space.checkpoint
        followed = self._followed
        if mixed := partly_recomputed(followed, policies, self.bounds):
            return mixed
        for width in range(1, _WIDTH + 1):
            self._origins = {}
            for refined in (False, True):
                for result in leaders(followed.values(), width, refined=refined):
                    for plan in self.space.neighbours(result.plan):
                        if self._comes_now(result, plan, refined):
                            self._origins.setdefault(plan, result)
            promising = [plan for plan in self._origins if self._is_promising(plan)]
            if promising:
                early = [] if ranked(followed.values()) else self._smaller()[:_WIDTH]
                return [*early, *sorted(promising, key=self._order)]
        self._origins = {}
        return self._smaller()

    @property
    def _followed(self) -> dict[Plan, Result]:
        """
        The results whose neighbours may be judged: all, but those of the surest plans only
        once another one fits. They are slow, and a plan that is a little too large for memory
        is a better start.
        """
        others = {p: r for p, r in self.results.items() if p not in self._surest}
        return self.results if ranked(others.values()) else others

    def _comes_now(self, result: Simulated, plan: Plan, refined: bool) -> bool:
        """
        Whether a neighbour of the plan of a result is to be judged. Plans are refined in one
        way at a time, and only those near the best.
        """
        if plan in self.results or not self._may_help(result, plan):
            return False
        if not refined:
            return not refinements(plan)
        is_near = result.throughput_samples_per_s >= self._least()
        return is_near and refinements(plan) > refinements(result.plan)

    def _order(self, plan: Plan) -> tuple[bool, float, int, bool, Plan]:
        """
        Sort key that puts plans first that most likely fit and are the fastest, then quick
        ones.
        """
        origin = self._origins[plan]
        return (
            not self._effects.may_fit(origin, plan),
            -self._effects.expected_throughput(origin, plan),
            refinements(plan),
            isinstance(plan, LayoutPlan),
            plan,
        )

    def _smaller(self) -> list[Plan]:
        """Returns variants with less memory of the plans for which no layouts fitted."""
        variants: set[Plan] = {
            smaller
            for plan, result in self.results.items()
            if isinstance(plan, LayoutPlan) and isinstance(result, Impossible)
            for smaller in self.space.smaller(plan)
        }
        return sorted(filter(self._is_promising, variants - self.results.keys()))

    def _may_help(self, result: Simulated, plan: Plan) -> bool:
        """
        Whether a neighbour may be possible, and better than the plan that `result` is of.

        A schedule that was impossible for all plans with as many ranks needs more layers
        than there are. Where memory does not bind, options that only save memory
        (recomputation, the host's memory, accumulation over micro-batches without a pipeline)
        make a plan slower.
        """
        alike = [
            isinstance(other, Simulated)
            for other in self.results.values()
            if (other.plan.p, other.plan.schedule) == (plan.p, plan.schedule)
        ]
        if plan.schedule and alike and not any(alike):
            return False
        if plan.p == 1 and plan.k > 1 and self._fits_undivided(plan):
            return False
        limited = result.layouts is not None and result.layouts.limited
        c, policies = result.plan, self.space.checkpoint
        if limited or not result.fits or c.checkpoint not in policies:
            return True
        recomputes = c.checkpoint != plan.checkpoint and policies.index(
            plan.checkpoint
        ) > policies.index(c.checkpoint)
        to_host = offloads(plan) and not offloads(c)
        return not (recomputes or to_host) and not (plan.p == 1 and plan.k > c.k)

    def _fits_undivided(self, plan: Plan) -> bool:
        """
        Whether a plan is known to fit with a single micro-batch, with layouts that memory did
        not decide.
        """
        whole = with_micro_batches(replace(plan, schedule="", overlap=False), 1)
        known = self.results.get(whole)
        if not isinstance(known, Simulated) or not known.fits:
            return False
        return known.layouts is None or not known.layouts.limited

    def _is_due(self, plan: Plan) -> bool:
        """
        Whether a plan is still to be judged when its turn comes. When a neighbour turned out
        to be better than the plans before, its own neighbours come first.
        """
        if plan in self._surest and self.best is not None:
            return False
        return not self._improved and self._is_promising(plan)

    def _is_promising(self, plan: Plan) -> bool:
        """
        Whether no bound rules a plan out; counts those that one does. While no plan fits,
        even one that cannot fit is judged, as it may show how little memory would suffice.
        """
        best = self.best
        if best is None or (self._may_fit(plan) and self._beats(plan, best)):
            return True
        self._skipped.add(plan)
        return False

    def _least(self) -> float:
        """The throughput in samples/s below which plans are of no interest."""
        known = ranked(self.results.values())
        alike = [r.throughput_samples_per_s for r in known if not r.plan.overlap]
        return max(alike, default=0.0) / _WORTH

    def _may_fit(self, plan: Plan) -> bool:
        return self.bounds[plan.batch].may_fit(plan)

    def _beats(self, plan: Plan, best: Simulated) -> bool:
        """Whether a plan might have a higher throughput than the best one."""
        seconds = self.bounds[plan.batch].seconds_of(plan)
        return seconds * best.throughput_samples_per_s < plan.batch

    @property
    def gap(self) -> float | None:
        """
        By what fraction the best plan is slower than the lower bound of all plans for its
        batch; None without a plan or without a bound.
        """
        best = self.best
        if best is None or not self.bounds[best.plan.batch].seconds:
            return None
        return best.step_time_s / self.bounds[best.plan.batch].seconds - 1


def _may_offload(modules: Sequence[ModuleOp], cluster: ClusterOp) -> bool:
    """Whether programs have an optimizer's states, and all devices a link to their host."""
    kinds = [op for op in cluster.walk() if isinstance(op, KindOp)]
    return all(kind.host_bandwidth is not None for kind in kinds) and any(
        parameters_of_states(entry_function(module)) for module in modules
    )
