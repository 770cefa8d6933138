"""
A search for layouts that fit into memory, also for pipelines. The simulator judges
whether a program fits.
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
"""
The maximal number of searches for one plan. Each has another memory limit or other
sends.
"""

SECONDS = 20.0
"""
The default time limit of each search of a pipeline's layouts, in seconds. A plan may
need several searches.
"""

_NEAR = 1.01
"""
A plan is good enough if its step takes at most this many times the lower bound of all
plans. A slower one is compared with the plan of level O2.
"""

_CLOSE = 0.95
"""
A plan that uses more than this fraction of the memory is accepted: too little memory is
left for a faster one.
"""

_DOUBT = 1.25
"""
If no layouts fit by the estimate, the limit is multiplied by this factor and the search
repeated, as the estimate may be too high.
"""

_WORTH_IT = 0.005
"""
Layouts are searched again with the costs of sends only if this could save at least this
fraction of a step.
"""

_MARGIN = 0.99
"""
The fraction of a memory limit that is given to the solver, as its estimates may be
slightly too low.
"""


def search_without_cluster(
    module: ModuleOp, mesh: Mesh, limits: Limits, clock: Clock
) -> LayoutResult | None:
    """
    Distributes a sequential program over a mesh by searched layouts, with unit costs
    instead of the costs of a cluster. The simulator does not check the memory limit. If
    the time is over before any layouts are found, applies only the requested splits of
    arguments, and returns None. Raises DistIRError if no layouts are possible.
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
    Returns a function that prices a reshard in seconds. Programs with searched layouts
    use the prices to decide which uses of a value share a copy. The prices come from
    the data sheet of the cluster, not from a profile, so that the same layouts always
    give the same program.
    """
    return costs_on(mesh, cluster).reshard


class FittedSearch:
    """
    Finds layouts with which a program or a pipeline fits into memory.

    The solver only estimates memory: the steps of a reshard have buffers of their own,
    and the memory of a pipeline stage depends on the schedule and on the ops where the
    stages begin. The search sees all stages as one graph: the program of one
    micro-batch, in which devices hold their `Shares`. Therefore the simulator judges
    each plan:

    - layouts that do not fit are searched again with a memory limit that is lower by
      the missing amount;
    - layouts of a pipeline that leave much memory unused, although the limit made them
      slower, are searched again with a higher limit;
    - the fastest plan that fits is taken.

    The stages of a pipeline, and so the sends between them, are known only after a
    search. If sends may matter, layouts are searched again with the costs of these
    sends, as long as the pipeline becomes faster. Each search for a pipeline ends after
    20 s, or after a quarter of the clock's time if the clock has a limit, unless the
    user sets another limit.

    - `mesh`: for a pipeline, its first axis is the micro-batch axis, and the others are
      the axes of each stage;
    - `finish`: the options of the pipeline; None for a program without one;
    - `limits`: `memory` is the memory that may be used on each device, all of it by
      default;
    - `profiles`: the profiles that price ops and communication;
    - `clock`: when it stops, the best plan so far is returned. If no search was
      completed, that plan splits only arguments, as requested. If the user interrupted
      the clock before any search was completed, KeyboardInterrupt is raised;
    - `pipeline_step`: simulates pipelines without building their programs; the plan's
      `module` is then the program of one micro-batch;
    - `buckets`: whether collectives of neighbouring tensors are merged into one message
      in the programs that are judged and returned. The search itself prices single
      messages.
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
        Returns the fastest plan that fits into memory. If no plan fits, returns the
        plan that uses the smallest fraction of the memory. `module` is not changed.

        `known` holds layouts from an earlier search, and the program annotated with
        these layouts, or None. The layouts are those of this plan, or the fastest
        layouts without a memory limit, for example from a search for another schedule.
        If the pipeline fits with these layouts, the only further search is for layouts
        with the costs of sends, if these costs were missing before. Raises DistIRError
        if no layouts fit even by estimate.
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
        """
        Returns the plan with `layouts` from an earlier search. `annotated` is the
        program with these layouts, or None to annotate a copy of `module`.
        """
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
        Searches layouts again with the costs of sends between the stages of `plan`, and
        returns the plan with the new layouts. Returns None if sends matter little, if
        no time is left, if no layouts were found, or if the same stages are in
        `divisions` already. Adds the stages to `divisions`. `base` is the plan that was
        found without the costs of sends.
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
        Returns the best plan under the assumption that sends between stages cost
        nothing. `known` is a plan from an earlier search that does not fit, or None if
        there is no such plan.
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
        Returns the plan with the layouts of a search at level O2, or None if this plan
        does not fit or equals `found`, the result at level O3. The plan of O2 can be
        better: it may fit where the plan of O3 needs more memory than estimated, and it
        may be faster, because level O2 chooses the mesh axes one after the other.
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
        """Returns the plan without a search: it splits only arguments, as requested."""
        annotated = module.clone()
        layouts = follow_requests(annotated, self.mesh)
        return self._plan(annotated, layouts)

    def _with_separate_copies(self, plan: FittedPlan) -> FittedPlan | None:
        """
        Returns the plan with the same layouts in which each use of a value makes its
        own copy, as the search assumed. Returns None if this plan does not fit into
        memory.
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
        Returns the data-parallel plan of a program, for comparison: the batch is split
        over all mesh axes. Returns None if the axes do not divide the batch or if
        requests forbid the split.

        The comparison is needed because `run` minimises the sum of the times of ops and
        messages, while the simulator knows which of them overlap. The layouts with the
        least sum are therefore not always the fastest.
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
        """Raises DistIRError if `plan` does not fit into memory."""
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
