"""
The search that `auto-parallel` runs. It judges plans by simulation, except for the
plans that lower bounds rule out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp, KindOp
from distir.errors import DistIRError
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.planning.auto.effects import Effects, enough, forecast
from distir.planning.auto.leaders import leaders, offloads, refinements, sorted_results
from distir.planning.auto.recomputation import partly_recomputed
from distir.planning.auto.space import AXES, AutoSpace, own_axes, with_micro_batches
from distir.planning.distribution.context import context_degrees
from distir.planning.distribution.experts import expert_degrees, limits_tokens
from distir.planning.distribution.options import EXPERT_AXES
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
A plan that takes more than this many times as long as the best plan without overlap
cannot become the best through its neighbours. The search of its layouts stops early,
and its refinements are not tried.
"""

_WIDTH = 2
"""The maximal number of plans of each kind whose neighbours are judged in one round."""

_LONGEST = 6
"""
The maximal number of plans that share work and are judged by one process. It is the
usual number of different micro-batch sizes.
"""

_STARTING = 0.25
"""
The part of the time limit after which no more plans are judged only because they need
little memory.
"""

OnProgress = Callable[["AutoSearch"], None]

OnForecast = Callable[[float, float], None]
"""A function that takes the least and the most seconds that a search will take."""


def _nobody(search: AutoSearch) -> None:
    """Does nothing. It is the default for callers that do not follow the rounds."""


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
    Prepares a search for the best plan on a cluster. `modules` are the sequential
    programs, one per batch size; the search chooses one of them.

    - `options`: the allowed values of options; an option without values may have any
      value;
    - `requests`: the user's requests for layouts of arguments;
    - `degrees`: if given, the only degrees (d, t, p) that are tried;
    - `time_limit`: in seconds. The layouts of one plan are searched for at most a
      quarter of this time; without a limit, solving takes at most 20 s per plan;
    - `on_progress`: a function that is called after each round;
    - `on_forecast`: a function that is called once, when the duration of the search can
      be estimated;
    - `on_best`: a function that is called when a plan turns out to be the best so far.

    Raises DistIRError if options contradict each other, or do not suit the programs or
    the cluster.
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
    if not options.expert_axes and not any(map(limits_tokens, modules)):
        defaults["expert_axes"] = EXPERT_AXES
    if not options.offload_states and not _may_offload(modules, cluster):
        defaults["offload_states"] = (False,)
    space = AutoSpace(
        batches=sorted(programs.modules),
        trains=trained == {True},
        devices=devices,
        degrees=degrees,
        own_axes=own,
        asked_axes=requests.axes,
        node=_fast_devices(cluster),
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
    A search that judges plans by simulation. It ends when the neighbours of the best
    plans are judged, when the time is over, or when the user interrupts it.

    The first round judges the grid, and searched layouts on each mesh of all devices.
    If the model is too large for one device, plans that need little memory, and their
    neighbours, come before. Each further round judges neighbours of three kinds of
    plans: the fastest plans that fit, unless they are far slower than the best plan
    (`leaders`); the fastest plans that do not fit but would be faster; and, while
    nothing fits, the plans that need the least memory.

    In a round, the neighbours that most likely fit and are fast come first. This is
    estimated from the effects that the same changes had on other plans (`Effects`).
    Refinements (overlap, searched stages) take several times as long to judge and gain
    a few per cent, so a plan is refined only when it is among the best. If a neighbour
    is better than all plans before, the round ends, and the next round starts with the
    neighbours of this plan.

    If no layouts of a plan fit, the plan is tried with more micro-batches. This happens
    at the end of the search or, while no plan fits, for two such plans at the start of
    each round. A plan is not judged if lower bounds show that it does not fit or is not
    faster than the best plan.

    - `results`: the judged plans. Plans with a result before the search are not judged
      again;
    - `pruned`: the number of plans that a bound ruled out;
    - `finished`: whether the search ended without the user or a time limit;
    - `interrupted`: whether the user ended the search;
    - `is_running`: whether the search is under way.

    When the clock stops, the search ends, and evaluations under way are dropped. If no
    possible plan is known by then, the search waits for the first one.
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
        # Plans that are judged only until something fits, and those that are judged only
        # in the first part of the time.
        self._surest: set[GridPlan] = set()
        self._starts: set[GridPlan] = set()
        self._start_clock = self._clock.part(_STARTING)

    @property
    def pruned(self) -> int:
        """The number of plans that a bound ruled out."""
        return len(self._skipped - self.results.keys())

    @property
    def _ends(self) -> bool:
        """
        Whether the search must end: the time is over and at least one possible plan is
        known.
        """
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
        Returns the plans of the first round. A plan that cannot fit is replaced by its
        variant with the lowest ZeRO stage that may fit, or else by a variant with
        optimizer states in the host's memory. If no plan may fit, returns all plans, so
        that the error can say how much memory is missing.
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
        Returns the plans that are judged before the first round if a training step is
        too large for one device; else an empty list. First come the plans that most
        surely fit; they are judged until one fits, so that even a short search has a
        plan. Then come a few plans that need little memory and are faster. The
        neighbours of these plans are a better start than the plans of the first round,
        most of which would not fit.
        """
        large = [
            batch
            for batch in self.space.batches
            if self.bounds[batch].parameters + self.bounds[batch].states
            > self.bounds[batch].memory
        ]
        surest = self.space.surest(large, self._may_fit)
        frugal = self.space.frugal(large, self._may_fit)
        self._surest, self._starts = set(surest) - set(frugal), set(frugal)
        return list(dict.fromkeys([*surest, *frugal]))

    def _judge(self, plans: Sequence[Plan]) -> bool:
        """
        Evaluates plans. Returns False if the time was over before all of them were
        evaluated, else True.
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
            # Of the plans that surely fit, each is left out once one of them does.
            longest=1 if self._surest & {*new} else _LONGEST,
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
        """
        Stores a result, and records the effect of the change that led to its plan.
        """
        self.results[result.plan] = result
        origin = self._origins.get(result.plan)
        if origin is not None:
            self._effects.learn(origin, result)
            known = sorted_results(self._followed.values(), refined=True)
            self._improved |= result in [found[0] for found in known if found]

    def _tell_forecast(self) -> None:
        """
        Calls `on_forecast` once, when enough plans are judged to estimate the duration
        of the search.
        """
        judged = len(self.results)
        if self._on_forecast is not None and enough(judged, self._first):
            spent = self._clock.seconds - self._began
            self._on_forecast(*forecast(self._first, judged, spent))
            self._on_forecast = None

    def _next(self) -> list[Plan]:
        """
        Returns the plans to judge in the next round, most promising first. Returns an
        empty list when the search is over.
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
        Returns the results whose neighbours may be judged. The slow plans that most
        surely fit (`AutoSpace.surest`) are left out until another plan fits. Until
        then, plans that are slightly too large for memory have better neighbours.
        """
        others = {p: r for p, r in self.results.items() if p not in self._surest}
        return self.results if ranked(others.values()) else others

    def _comes_now(self, result: Simulated, plan: Plan, refined: bool) -> bool:
        """
        Whether `plan`, a neighbour of the plan in `result`, is judged in this round.
        With `refined`, `plan` must add a refinement to a plan near the best. Without
        `refined`, `plan` must have no refinement.
        """
        if plan in self.results or not self._may_help(result, plan):
            return False
        if not refined:
            return not refinements(plan)
        is_near = result.throughput_samples_per_s >= self._least()
        return is_near and refinements(plan) > refinements(result.plan)

    def _order(self, plan: Plan) -> tuple[bool, bool, float, int, bool, bool, Plan]:
        """
        Returns a sort key for neighbours. Plans that are expected to fit come first,
        then faster plans, then plans that are judged quickly. If the model is too large
        for one device, plans with searched layouts come last, because a search of
        layouts takes as long as many plans of the grid. Sequence parallelism then comes
        before all other changes that were not tried yet, because it saves memory at no
        cost.
        """
        origin, is_large = self._origins[plan], bool(self._starts)
        is_searched = isinstance(plan, LayoutPlan)
        saves = isinstance(plan, GridPlan) and plan.sequence_parallel
        return (
            not self._effects.may_fit(origin, plan),
            is_large and is_searched,
            -self._effects.expected_throughput(origin, plan),
            refinements(plan),
            is_searched,
            is_large and not saves,
            plan,
        )

    def _smaller(self) -> list[Plan]:
        """
        Returns variants, with more micro-batches, of the plans for which no layouts
        fitted into memory.
        """
        variants: set[Plan] = {
            smaller
            for plan, result in self.results.items()
            if isinstance(plan, LayoutPlan) and isinstance(result, Impossible)
            for smaller in self.space.smaller(plan)
        }
        return sorted(filter(self._is_promising, variants - self.results.keys()))

    def _may_help(self, result: Simulated, plan: Plan) -> bool:
        """
        Whether `plan`, a neighbour of the plan in `result`, may be possible and better.
        The answer is False in these cases:

        - the schedule of `plan` was impossible for all judged plans with the same
          number of ranks, because the model has too few layers;
        - memory does not limit the plan in `result`, and `plan` differs from it only by
          saving memory: by recomputation, the host's memory, or more micro-batches
          without a pipeline;
        - `plan` has micro-batches without a pipeline, although a single micro-batch
          fits.
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
        Whether `plan` is known to fit with a single micro-batch, with layouts that were
        chosen without a memory limit.
        """
        whole = with_micro_batches(replace(plan, schedule="", overlap=False), 1)
        known = self.results.get(whole)
        if not isinstance(known, Simulated) or not known.fits:
            return False
        return known.layouts is None or not known.layouts.limited

    def _is_due(self, plan: Plan) -> bool:
        """
        Whether a plan still needs to be judged when its turn comes. Returns False if
        this round found a better plan, because the neighbours of that plan come first,
        or if lower bounds rule the plan out.
        """
        if plan in self._surest and self.best is not None:
            return False
        is_start = plan in self._starts and plan not in self._origins
        if is_start and self._start_clock.stopped and self.best is not None:
            return False
        return not self._improved and self._is_promising(plan)

    def _is_promising(self, plan: Plan) -> bool:
        """
        Whether no lower bound rules out `plan`. Counts the plans that are ruled out.
        While no plan fits, returns True for all plans, because each may show how little
        memory would suffice.
        """
        best = self.best
        if best is None or (self._may_fit(plan) and self._beats(plan, best)):
            return True
        self._skipped.add(plan)
        return False

    def _least(self) -> float:
        """
        Returns the lowest throughput, in samples/s, that a new plan must reach to be of
        interest.
        """
        known = ranked(self.results.values())
        alike = [r.throughput_samples_per_s for r in known if not r.plan.overlap]
        return max(alike, default=0.0) / _WORTH

    def _may_fit(self, plan: Plan) -> bool:
        return self.bounds[plan.batch].may_fit(plan)

    def _beats(self, plan: Plan, best: Simulated) -> bool:
        """
        Whether the lower bound of `plan` allows a higher throughput than `best` has.
        """
        seconds = self.bounds[plan.batch].seconds_of(plan)
        return seconds * best.throughput_samples_per_s < plan.batch

    @property
    def gap(self) -> float | None:
        """
        The distance of the best plan from the lower bound of all plans for its batch
        size, as a fraction of the bound. The gap is None if no plan or no bound is
        known.
        """
        best = self.best
        if best is None or not self.bounds[best.plan.batch].seconds:
            return None
        return best.step_time_s / self.bounds[best.plan.batch].seconds - 1


def _fast_devices(cluster: ClusterOp) -> int:
    """Returns the number of devices that the innermost links of a cluster connect."""
    levels = Hardware.of(cluster).levels
    return levels[0].span if levels else 1


def _may_offload(modules: Sequence[ModuleOp], cluster: ClusterOp) -> bool:
    """
    Whether any program has optimizer states and all kinds of devices have a link to
    their host.
    """
    kinds = [op for op in cluster.walk() if isinstance(op, KindOp)]
    return all(kind.host_bandwidth is not None for kind in kinds) and any(
        parameters_of_states(entry_function(module)) for module in modules
    )
