"""
A search for layouts that fit into memory, inside pipelines too, with the simulator as the
judge of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from xdsl.dialects.builtin import ModuleOp, UnitAttr

from distir.dialects.device import ClusterOp
from distir.dialects.dist_attributes import SEPARATE_COPIES
from distir.errors import DistIRError
from distir.interpreters.simulator import simulate
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.interpreters.simulator.profiles.profile import Profile
from distir.pipelining import SEARCH, PipelineOptions
from distir.planning.costs.micro_batches import (
    MicroBatchCosts,
    SimulatedCosts,
    costs_on,
)
from distir.planning.costs.unit import UnitCosts
from distir.planning.distribution.batches import try_to_split_batch
from distir.planning.distribution.buckets import bucket_collectives_of
from distir.planning.layouts.chosen import ChosenLayouts, apply_layouts, follow_requests
from distir.planning.layouts.fitted_plan import FittedPlan, PipelineStep
from distir.planning.layouts.search import (
    LayoutResult,
    Limits,
    NoLayouts,
    search_layouts,
    search_sharding,
)
from distir.planning.layouts.sends import (
    StagesOfOps,
    most_to_gain,
    note_places,
    places_of,
    take_places,
)
from distir.planning.plans.programs import trains
from distir.planning.stages import with_searched_stages
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.solver.clock import Clock, TimeIsOver
from distir.transforms.partitioning import Price, partition
from distir.transforms.pipelines.pipeline import divided, make_pipeline
from distir.transforms.resharding import lower_reshards

_ROUNDS = 4
"""How often layouts are solved for at most, each time under another limit of memory."""

SECONDS = 20.0
"""The default limit of each solving, in seconds; a plan may need several."""

_NEAR = 1.01
"""
A plan that takes at most so many times the bound of all plans is good enough; another one
is compared with that of level O2.
"""

_CLOSE = 0.95
"""
A plan that uses this fraction of the memory leaves too little to look for a faster one.
"""

_DOUBT = 1.25
"""A plan whose estimate exceeds the memory by this factor may fit nevertheless."""

_WORTH_IT = 0.005
"""
The fraction of a step that sends must be able to save if layouts are to be searched again
with them.
"""

_MARGIN = 0.99
"""
The fraction of a limit that is given to the solver, as its estimates may be slightly too
low.
"""


def search_without_cluster(
    module: ModuleOp, mesh: Mesh, limits: Limits, clock: Clock
) -> LayoutResult | None:
    """
    Distributes a sequential program over a mesh with the layouts that are cheapest by unit
    costs, within a limit of memory that no simulation checks. If the time is over before
    any are found, arguments are split as was asked for and nothing else is, and None is
    returned. Raises DistIRError.
    """
    found = None
    try:
        found = search_sharding(module, UnitCosts(mesh), limits, clock=clock)
    except TimeIsOver:
        if clock.interrupted:
            raise KeyboardInterrupt from None
        follow_requests(module, mesh)
    partition(module, lower=True)
    return found


def copy_price(mesh: Mesh, cluster: ClusterOp) -> Price:
    """
    Returns the price in seconds by which copies of values that several ops share are made
    in programs with searched layouts. It is that of the data sheets, whatever profile the
    layouts were searched with, so that layouts always mean the same program.
    """
    return costs_on(mesh, cluster).reshard


class FittedSearch:
    """
    Finds layouts with which a program or a pipeline fits.

    The memory that the search predicts for a choice of layouts is an estimate: the steps of
    changes of layout have buffers of their own, and what a stage of a pipeline holds
    depends on where the stages begin and on the schedule, while all stages are searched as
    one graph: the program as it runs for one micro-batch, in which devices hold their
    `Shares`. So the simulator judges. Layouts that do not fit are solved for again under a
    limit that is lower by as much as was missing; layouts of a pipeline that leave much
    memory although the limit made them slower, under a higher limit. The fastest that fit
    are taken. Where stages begin is known only then, and with it what they send each other;
    if that may matter, layouts are solved for again with the seconds of these sends, as
    long as the pipeline becomes faster. For a pipeline each solving ends after 20 s or a
    quarter of the clock's time, unless the user says otherwise.

    - `mesh`: for a pipeline, its first axis is the micro-batch axis, the others are those
      of each stage;
    - `finish`: the pipeline, if there is to be one;
    - `limits`: their memory is what may be used on each device, by default all of it;
    - `clock`: when it stops, the best plan so far is the answer. There always is one: if
      nothing was solved, arguments are split as was asked for and nothing else is. An
      interruption before that ends the program;
    - `pipeline_step`: simulates pipelines whose programs nobody needs; `module` is then the
      program that would become the pipeline;
    - `buckets`: whether collectives of neighbouring tensors travel in one message in the
      programs that are judged and returned. The costs of the search itself are those of
      single messages.
    """

    def __init__(
        self,
        mesh: Mesh,
        cluster: ClusterOp,
        finish: PipelineOptions | None,
        limits: Limits,
        profiles: Sequence[Profile] = (),
        clock: Clock | None = None,
        pipeline_step: PipelineStep | None = None,
        buckets: bool = False,
    ):
        self.buckets = buckets
        self.clock = clock
        self.pipeline_step = pipeline_step
        self.mesh = mesh
        self.cluster = cluster
        self.finish = finish
        self.limits = limits
        if finish is not None and clock is not None and clock.limit < inf:
            self.limits = replace(limits, seconds=clock.limit / _ROUNDS)
        elif finish is not None and limits.seconds is None:
            self.limits = replace(limits, seconds=SECONDS)
        self.profiles = profiles
        devices = len(mesh.devices)
        if finish is not None:
            devices = finish.p * devices // mesh.size(TIME_AXIS)
            if devices > cluster.size:
                raise DistIRError(
                    f"a pipeline of {finish.p} stages on {devices // finish.p} devices each "
                    f"needs {devices} devices, but cluster @{cluster.sym_name.data} has "
                    f"{cluster.size}; choose fewer stages or smaller axes"
                )
        used = mesh.devices if finish is None else range(devices)
        kinds = Hardware.of(cluster).distinct_kinds(used)
        if len(kinds) > 1:
            self.pipeline_step = None  # it knows one device's memory
        least = float(min(kind.memory for kind in kinds))
        self.memory = least if limits.memory is None else limits.memory
        self.price = copy_price(mesh, cluster)

    def run(
        self,
        module: ModuleOp,
        known: tuple[ModuleOp | None, ChosenLayouts] | None = None,
    ) -> FittedPlan:
        """
        Returns the fastest plan that fits; if none does, the one that lacks the least
        memory. The module stays as it is.

        `known` are layouts that were found before, with the annotated program of a plan that
        has them, if there is one: those of this plan, or the fastest ones without a limit,
        found for another schedule, for example. If the pipeline fits with them, nothing is
        solved, except for what sends may change where they did not count yet. Raises
        DistIRError.
        """
        finish, schedule = self.finish, None
        if finish is not None:
            schedule = finish.schedule_of(finish.k, trains(module))
            module = module.clone()
            note_places(places_of(module))
        costs = costs_on(
            self.mesh,
            self.cluster,
            schedule,
            self.profiles,
            blocking_sends=finish is not None and finish.blocking_sends,
        )
        plan = None if known is None else self._known(module, *known)
        if plan is None or not plan.fits:
            plan = self._without_sends(module, costs, plan)
        if not isinstance(costs, MicroBatchCosts) or plan.layouts.without_sends:
            return plan
        base, divisions = plan, list[StagesOfOps]()
        for _ in range(_ROUNDS):
            other = self._with_sends(module, costs, plan, base, divisions)
            if other is None or other.rank >= plan.rank:
                break
            plan = other
        return plan

    def _known(
        self, module: ModuleOp, annotated: ModuleOp | None, layouts: ChosenLayouts
    ) -> FittedPlan:
        """Returns the plan with layouts that were found before."""
        if annotated is None:
            annotated = module.clone()
            apply_layouts(annotated, self.mesh, layouts)
        return self._plan(annotated, layouts)

    def _with_sends(
        self,
        module: ModuleOp,
        costs: MicroBatchCosts,
        plan: FittedPlan,
        base: FittedPlan,
        divisions: list[StagesOfOps],
    ) -> FittedPlan | None:
        """
        Returns the plan with the layouts that are best if sends between the stages of `plan`
        count; None if there is little to gain, no time is left, or these stages are among
        the `divisions` that were tried, to which they are added. `base` is the plan that was
        found without sends.
        """
        if plan.divided is None or not (plan.fits and costs.price) or self._is_late:
            return None
        assert self.finish is not None
        asked = self.finish.stages
        marked = asked == (SEARCH,)
        division = divided(plan.divided, self.finish, () if marked else asked)
        work = self.finish.p * plan.step.seconds
        if most_to_gain(division, costs) < _WORTH_IT * work:
            return None
        stages = StagesOfOps.of(division)
        if stages in divisions:
            return None
        divisions.append(stages)
        annotated = module.clone()
        # Costs with sends are no bound of the time of a step.
        limits = replace(self.limits, cutoff=inf, memory=base.limit or self.memory)
        try:
            found = search_layouts(
                annotated, costs, limits, clock=self.clock, stages=stages
            )
        except TimeIsOver:
            return None
        if isinstance(found, NoLayouts):
            return None
        layouts = replace(found.layouts, without_sends=base.layouts)
        other = self._plan(annotated, layouts)
        if not other.fits:
            other = self._with_separate_copies(other) or other
        proven = found.with_proof(found.bound, float(other.needed))
        return replace(other, found=replace(proven, sends=True), base=base)

    def _without_sends(
        self,
        module: ModuleOp,
        costs: SimulatedCosts,
        known: FittedPlan | None,
    ) -> FittedPlan:
        """
        Returns the plan that `run` gives if sends between stages take no time; `known` is a
        plan that does not fit.
        """
        finish, plans = self.finish, [] if known is None else [known]
        limit, failed, bound = self.memory, False, inf
        failure: str | None = None
        for attempt in range(_ROUNDS):
            annotated = module.clone()
            limits = replace(self.limits, memory=limit)
            try:
                found = search_layouts(annotated, costs, limits, clock=self.clock)
            except TimeIsOver:
                if not plans and failure is None:
                    if self.clock is not None and self.clock.interrupted:
                        raise KeyboardInterrupt from None
                    plans.append(self._unsearched(module))
                break
            if isinstance(found, NoLayouts):
                failure = failure or found.reason
                if attempt or finish is None or found.slow or self._is_late:
                    break
                limit *= _DOUBT
                continue
            plan = self._plan(annotated, found.layouts)
            if not plan.fits:
                plan = self._with_separate_copies(plan) or plan
            # What a tighter limit excludes may fit: the first bound is that of all plans.
            bound = min(bound, found.bound)
            proven = found.with_proof(bound, float(plan.needed))
            plan = replace(plan, found=proven, limit=limit)
            plans.append(plan)
            is_near = plan.fits and plan.step.seconds <= bound * _NEAR
            limited = plan.layouts.limited and self.limits.level == "O3"
            if attempt == 0 and limited and not is_near and not self._is_late:
                other = self._by_segments(module, costs, found, bound)
                if other is not None:
                    plans.append(other)
                    break
            as_expected = finish is None or failed
            close = not plan.layouts.limited or plan.occupied > _CLOSE
            if (plan.fits and (as_expected or close)) or self._is_late:
                break
            failed = failed or not plan.fits
            limit = _MARGIN * min(limit, found.peak) / plan.occupied
        if failure is not None and not plans:
            raise DistIRError(failure)
        return min(plans, key=lambda plan: plan.rank)

    def _by_segments(
        self, module: ModuleOp, costs: SimulatedCosts, found: LayoutResult, bound: float
    ) -> FittedPlan | None:
        """
        Returns the plan of level O2, which may fit where that of O3 (`found`) needs more
        memory than the search counted, or be faster, as mesh axes are chosen one after the
        other; None if it does not fit, or is the same.
        """
        annotated, first = module.clone(), found.by_segments
        if first is not None and first.layouts == found.layouts:
            return None
        if first is not None:
            apply_layouts(annotated, self.mesh, first.layouts)
        else:
            limits = replace(self.limits, memory=self.memory, level="O2")
            try:
                searched = search_layouts(annotated, costs, limits, clock=self.clock)
            except TimeIsOver:
                return None
            if isinstance(searched, NoLayouts):
                return None
            first = searched
        plan = self._plan(annotated, first.layouts)
        if not plan.fits:
            return None
        return replace(plan, found=first.with_proof(bound, float(plan.needed)))

    @property
    def _is_late(self) -> bool:
        return self.clock is not None and self.clock.stopped

    def _unsearched(self, module: ModuleOp) -> FittedPlan:
        """Returns the plan without a search: arguments split as was asked for."""
        annotated = module.clone()
        layouts = follow_requests(annotated, self.mesh)
        return self._plan(annotated, layouts)

    def _with_separate_copies(self, plan: FittedPlan) -> FittedPlan | None:
        """
        Returns the same layouts where each use brings a value to its layout for itself, as
        the search counted them; None if they do not fit either.
        """
        annotated = plan.annotated.clone()
        annotated.attributes[SEPARATE_COPIES] = UnitAttr()
        found = self._plan(annotated, replace(plan.layouts, separate=True))
        return found if found.fits else None

    def _plan(self, annotated: ModuleOp, layouts: ChosenLayouts) -> FittedPlan:
        module, before = annotated.clone(), None
        partition(module, lower=self.finish is None, price=self.price)
        if self.finish is not None:
            if self.pipeline_step is not None:
                copy = module.clone()
                take_places(copy)
                step = self.pipeline_step(copy, self.finish, self.buckets)
                if step is not None:
                    peak = step.reserved_bytes
                    occupied = peak / min(self.memory, step.memory_bytes)
                    return FittedPlan(
                        annotated, module, step, occupied, peak, layouts, divided=module
                    )
            places = take_places(module)
            options, stages = with_searched_stages(
                module, self.finish, self.finish.stages
            )
            if self.finish.p > 1:
                note_places(places)
                before = module.clone()
                take_places(module)
            make_pipeline(module, options, stages)
            lower_reshards(module)
        if self.buckets:
            bucket_collectives_of(module)
        simulation = simulate(module, profiles=self.profiles)
        peaks = zip(
            simulation.reserved_memory_bytes, simulation.memory_bytes, strict=True
        )
        occupied, needed = max(
            (peak / min(self.memory, memory), peak) for peak, memory in peaks
        )
        return FittedPlan(
            annotated, module, simulation, occupied, needed, layouts, divided=before
        )

    def data_parallel(self, module: ModuleOp) -> FittedPlan | None:
        """
        Returns data parallelism for a program, the batch split over all axes, to compare a
        plan with; None if the batch does not divide or requests say otherwise. What `run`
        minimises is a sum over ops and messages. The simulator also knows which of them run
        together, so that layouts with the least sum may take longer than others.
        """
        axes = tuple(name for name, _ in self.mesh.axes)
        trial = module.clone()
        if any(try_to_split_batch(trial, axis) is not None for axis in axes):
            return None
        annotated = module.clone()
        batch = [axis for axis in axes if axis != TIME_AXIS]
        layouts = follow_requests(annotated, self.mesh, batch)
        return self._plan(annotated, layouts)

    def check(self, plan: FittedPlan) -> None:
        """Raises DistIRError for a plan that does not fit."""
        if not plan.fits:
            allowed = plan.needed / plan.occupied
            what = "program" if self.finish is None else "pipeline"
            found = "found in the time given" if self._is_late else "found"
            raise DistIRError(
                f"search-sharding: no layouts were {found} with which the {what} fits into "
                f"{allowed:.6g} bytes per device; {plan.needed:.6g} bytes would do. Use more "
                f"devices or stages, more micro-batches, or `activation-checkpoint` before "
                f"the search"
            )
