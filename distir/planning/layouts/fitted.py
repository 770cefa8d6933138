"""Searched layouts that fit, inside pipelines too, as the simulator is the judge of memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.errors import DistIRError
from distir.interpreters.simulator import Simulation, simulate
from distir.interpreters.simulator.costs.hardware import Hardware
from distir.interpreters.simulator.profiles.profile import Profile
from distir.pipelining import PipelineOptions
from distir.planning.buckets import bucket_collectives_of
from distir.planning.layouts.layout_graph import ChosenLayouts, apply_layouts
from distir.planning.layouts.search import (
    LayoutResult,
    Limits,
    NoLayouts,
    search_layouts,
    search_sharding,
)
from distir.planning.micro_batch_costs import Shares, costs_on
from distir.planning.programs import trains
from distir.planning.stages import make_pipeline_as_asked
from distir.planning.unit_costs import UnitCosts
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.solver.clock import Clock, TimeIsOver
from distir.transforms.partitioning import partition
from distir.transforms.resharding import lower_reshards

_ROUNDS = 4
"""How often layouts are solved for at most, each time under another limit."""

SECONDS = 20.0
"""Of each solving, if the user says nothing else: there are several for each plan."""

_CLOSE = 0.95
"""A plan that needs this part of the memory leaves too little to look for a faster one."""

_DOUBT = 1.25
"""What seems to need that much more memory than there is may fit nevertheless."""

_MARGIN = 0.99
"""Of a limit, so that what is predicted a little too low fits nevertheless."""


class Step(NamedTuple):
    """
    A step of a program: its seconds, the samples of the batch in a second, and the most bytes
    on the device that has the least left of its `memory_bytes`.
    """

    seconds: float
    samples_per_s: float
    peak_bytes: int
    memory_bytes: int

    @staticmethod
    def of(simulation: Simulation) -> Step:
        """The step that was simulated."""
        peak, memory = min(
            zip(simulation.peak_memory_bytes, simulation.memory_bytes, strict=True),
            key=lambda device: device[1] - device[0],
        )
        seconds = simulation.step_time_s
        return Step(seconds, simulation.throughput_samples_per_s, peak, memory)


PipelineStep = Callable[[ModuleOp, PipelineOptions, bool], Step | None]
"""
What a step of the pipeline takes that would be made of a partitioned program, which it may
take apart, with buckets of collectives (True) or without; None if that pipeline has to be there to find out.
"""


@dataclass(frozen=True)
class FittedPlan:
    """
    A distributed program, simulated.

    - `annotated`: the program with the layouts, before `partition`;
    - `module`: the program distributed; `simulation`: of it, if that was made;
    - `step`: what it takes;
    - `occupied`: what part of a device's memory is used, where that is the most;
      `needed`: those bytes;
    - `layouts`: which they are; `found`: what the search of them found, if they are new.
    """

    annotated: ModuleOp
    module: ModuleOp
    simulation: Simulation | None
    step: Step
    occupied: float
    needed: int
    layouts: ChosenLayouts
    found: LayoutResult | None = None

    @property
    def fits(self) -> bool:
        """Whether no device needs more than it has."""
        return self.occupied <= 1


def search_without_cluster(
    module: ModuleOp, mesh: Mesh, limits: Limits, clock: Clock
) -> LayoutResult | None:
    """
    Distributes a sequential program over a mesh by the layouts that are the cheapest by unit
    costs, within a limit of memory that no simulation checks. If the time is over before any
    are found (None), arguments are split as was asked for, and nothing else is. Raises
    DistIRError.
    """
    found = None
    try:
        found = search_sharding(module, UnitCosts(mesh), limits, clock=clock)
    except TimeIsOver:
        if clock.interrupted:
            raise KeyboardInterrupt from None
        apply_layouts(module, mesh, ChosenLayouts())
    partition(module, lower=True)
    return found


class FittedSearch:
    """
    Finds layouts with which a program or a pipeline fits.

    What memory a choice of layouts takes is an estimate: steps of changes of layouts have
    copies of their own, and what a stage of a pipeline holds depends on where the stages
    begin and on the schedule, while all stages have one graph of choices: the program as it
    runs for one micro-batch, in which devices hold their `Shares`. So the simulator judges:
    what does not fit is solved for again under a limit that is lower by as much as was
    missing; if a pipeline leaves much although the limit made it slower, under a higher
    one. The fastest of these that fits is taken. For a pipeline each solving ends after
    20 s or a quarter of the clock's time, if the user says nothing else.

    - `mesh`: for a pipeline, its first axis is the axis over time, the others are those of
      each stage;
    - `finish`: the pipeline, if there is to be one;
    - `limits`: memory is what may be used on each device, by default all of it;
    - `clock`: when it stops, the best plan so far is the answer. There always is one: if
      nothing was solved, arguments are split as was asked for, and nothing else is. But an
      interruption before there is anything ends the program;
    - `pipeline_step`: judges pipelines where nobody needs their programs, `module` is then
      what would become one;
    - `buckets`: whether collectives of neighbouring tensors travel in one message, in what is
      judged and given. What choices cost is the price of single messages.
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

    def run(
        self,
        module: ModuleOp,
        known: tuple[ModuleOp, ChosenLayouts] | None = None,
    ) -> FittedPlan:
        """
        The fastest plan that fits; if none does, the one that lacks the least. The module
        stays as it is. `known` are layouts (annotated) that are the fastest without a
        limit, found for another schedule, say: if the pipeline fits with them, nothing is
        solved. Raises DistIRError.
        """
        finish = self.finish
        shares = finish and Shares.of(finish.schedule_of(finish.k, trains(module)))
        costs = costs_on(self.mesh, self.cluster, shares, self.profiles)
        plans: list[FittedPlan] = []
        if known is not None:
            plans.append(self._plan(*known))
            if plans[0].fits:
                return plans[0]
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
            # What a tighter limit excludes may fit: the first bound is that of all plans.
            bound = min(bound, found.bound)
            plan = replace(plan, found=found.with_proof(bound, float(plan.needed)))
            plans.append(plan)
            as_expected = finish is None or failed
            close = not plan.layouts.limited or plan.occupied > _CLOSE
            if (plan.fits and (as_expected or close)) or self._is_late:
                break
            failed = failed or not plan.fits
            limit = _MARGIN * min(limit, found.peak) / plan.occupied
        if failure is not None and not plans:
            raise DistIRError(failure)
        return min(
            plans,
            key=lambda p: (0, p.step.seconds) if p.fits else (1, p.occupied),
        )

    @property
    def _is_late(self) -> bool:
        return self.clock is not None and self.clock.stopped

    def _unsearched(self, module: ModuleOp) -> FittedPlan:
        """What there is without a search."""
        annotated = module.clone()
        layouts = ChosenLayouts()
        apply_layouts(annotated, self.mesh, layouts)
        return self._plan(annotated, layouts)

    def _plan(self, annotated: ModuleOp, layouts: ChosenLayouts) -> FittedPlan:
        module = annotated.clone()
        partition(module, lower=self.finish is None)
        if self.finish is not None:
            if self.pipeline_step is not None:
                step = self.pipeline_step(module.clone(), self.finish, self.buckets)
                if step is not None:
                    peak = step.peak_bytes
                    occupied = peak / min(self.memory, step.memory_bytes)
                    return FittedPlan(
                        annotated, module, None, step, occupied, peak, layouts
                    )
            make_pipeline_as_asked(module, self.finish, self.finish.stages)
            lower_reshards(module)
        if self.buckets:
            bucket_collectives_of(module)
        simulation = simulate(module, profiles=self.profiles)
        peaks = zip(simulation.peak_memory_bytes, simulation.memory_bytes, strict=True)
        occupied, needed = max(
            (peak / min(self.memory, memory), peak) for peak, memory in peaks
        )
        step = Step.of(simulation)
        return FittedPlan(
            annotated, module, simulation, step, occupied, needed, layouts
        )

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
