"""Searched layouts inside a pipeline, under the memory that the simulator finds it to need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.errors import DistIRError
from distir.interpreters.cost import Simulation, simulate
from distir.interpreters.cost.hardware import Hardware
from distir.interpreters.cost.profiles import Profile
from distir.passes.distribute import DistributePass
from distir.passes.partition import PartitionPass
from distir.passes.search.layout_graph import ChosenLayouts
from distir.passes.search.micro_batch_prices import Shares
from distir.passes.search.programs import trains
from distir.passes.search.sharding import Found, Limits, search_sharding
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.solver import InfeasibleError

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


@dataclass(frozen=True)
class PipelinedPlan:
    """
    A pipeline, simulated.

    - `annotated`: the program with the layouts, before `partition`;
    - `module`: the pipeline; `simulation`: of it;
    - `occupied`: what part of a device's memory is used, where that is the most;
      `needed`: those bytes;
    - `layouts`: which they are; `found`: what the search of them found, if they are new.
    """

    annotated: ModuleOp
    module: ModuleOp
    simulation: Simulation
    occupied: float
    needed: int
    layouts: ChosenLayouts
    found: Found | None = None

    @property
    def fits(self) -> bool:
        """Whether no device needs more than it has."""
        return self.occupied <= 1


class PipelineSearch:
    """
    Finds layouts for the stages of a pipeline.

    All stages have one graph of choices: the program as it runs for one micro-batch, in
    which devices hold their `Shares`. What a stage really holds depends on where the
    stages begin and on the schedule, so the simulator judges: if a pipeline does not fit,
    layouts are solved for again under a limit that is lower by as much as was missing; if
    much is left although the limit made it slower, under a higher one. The fastest of
    these that fits is taken. Each solving ends after 20 s, if the user says nothing else.

    - `mesh`: its first axis is the axis over time, the others are those of each stage;
    - `finish`: makes the pipeline (`distribute`'s last part);
    - `limits`: memory is what may be used on each device, by default all of it.
    """

    def __init__(
        self,
        context: Context,
        mesh: Mesh,
        cluster: ClusterOp,
        finish: DistributePass,
        limits: Limits,
        profiles: Sequence[Profile] = (),
    ):
        self.context = context
        self.mesh = mesh
        self.cluster = cluster
        self.finish = finish
        self.limits = limits
        if limits.seconds is None:
            self.limits = replace(limits, seconds=SECONDS)
        self.profiles = profiles
        devices = finish.p * len(mesh.devices) // mesh.size(TIME_AXIS)
        if devices > cluster.size:
            raise DistIRError(
                f"a pipeline of {finish.p} stages on {devices // finish.p} devices each "
                f"needs {devices} devices, but cluster @{cluster.sym_name.data} has "
                f"{cluster.size}; choose fewer stages or smaller axes"
            )
        kinds = Hardware.of(cluster).distinct_kinds(range(devices))
        least = float(min(kind.memory for kind in kinds))
        self.memory = least if limits.memory is None else limits.memory

    def run(
        self,
        module: ModuleOp,
        known: tuple[ModuleOp, ChosenLayouts] | None = None,
    ) -> PipelinedPlan:
        """
        The fastest plan that fits; if none does, the one that lacks the least. The module
        stays as it is. `known` are layouts (annotated) that are the fastest without a
        limit, found for another schedule, say: if the pipeline fits with them, nothing is
        solved. Raises DistIRError.
        """
        shares = Shares.of(self.finish.schedule_of(trains(module)))
        plans: list[PipelinedPlan] = []
        if known is not None:
            plans.append(self._plan(*known))
            if plans[0].fits:
                return plans[0]
        limit, failed = self.memory, False
        failure: DistIRError | None = None
        for attempt in range(_ROUNDS):
            annotated = module.clone()
            limits = replace(self.limits, memory=limit)
            try:
                found = search_sharding(
                    annotated,
                    self.mesh,
                    self.cluster,
                    limits,
                    shares=shares,
                    profiles=self.profiles,
                )
            except DistIRError as error:
                if not isinstance(error.__cause__, InfeasibleError):
                    raise
                failure = failure or error
                if attempt:
                    break
                limit *= _DOUBT
                continue
            plan = replace(self._plan(annotated, found.layouts), found=found)
            plans.append(plan)
            if plan.fits and (not plan.layouts.limited or plan.occupied > _CLOSE):
                break
            if plan.fits and failed:
                break
            failed = failed or not plan.fits
            limit = _MARGIN * min(limit, found.peak) / plan.occupied
        if failure is not None and not plans:
            raise failure from failure.__cause__
        return min(
            plans,
            key=lambda p: (0, p.simulation.step_time_s) if p.fits else (1, p.occupied),
        )

    def _plan(self, annotated: ModuleOp, layouts: ChosenLayouts) -> PipelinedPlan:
        module = annotated.clone()
        PartitionPass(lower=False).apply(self.context, module)
        self.finish.complete(self.context, module)
        simulation = simulate(module, profiles=self.profiles)
        peaks = zip(simulation.peak_memory_bytes, simulation.memory_bytes, strict=True)
        occupied, needed = max(
            (peak / min(self.memory, memory), peak) for peak, memory in peaks
        )
        return PipelinedPlan(annotated, module, simulation, occupied, needed, layouts)


def replace_program(module: ModuleOp, other: ModuleOp) -> None:
    """Puts everything that is in another module in the place of what is in this one."""
    for op in list(module.body.block.ops):
        op.detach()
        op.drop_all_references()
    for op in list(other.body.block.ops):
        op.detach()
        module.body.block.add_op(op)
    module.attributes.clear()
    module.attributes.update(other.attributes)
