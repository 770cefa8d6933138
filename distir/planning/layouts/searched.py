"""Distributes a program with the layouts that a search finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp, MeshOp
from distir.errors import DistIRError
from distir.interpreters.simulator import Simulation
from distir.interpreters.simulator.profiles.profile import Profile
from distir.planning.distribution.buckets import bucket_collectives_of
from distir.planning.distribution.meshes import add_mesh, cluster_in
from distir.planning.distribution.overlap import overlap_communication
from distir.planning.layouts.chosen import (
    ChosenLayouts,
    apply_layouts,
    follow_requests,
)
from distir.planning.layouts.fitted import FittedSearch, copy_price
from distir.planning.layouts.fitted_plan import PipelineStep, Step
from distir.planning.layouts.planned_arguments import (
    PlannedArgument,
    place_arguments,
)
from distir.planning.layouts.search import Limits
from distir.planning.plans.plan import LayoutPlan
from distir.planning.requests import Requests, keep_whole, request_shards
from distir.planning.stages import make_pipeline_as_asked
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.solver.clock import Clock
from distir.transforms.memory.checkpointing import checkpoint
from distir.transforms.partitioning import Price, partition
from distir.transforms.resharding import lower_reshards

_GAP = 1e-3
"""
The allowed cost of layouts above the optimum, as a fraction. It is the default of
`search-sharding`.
"""

_TOGETHER = 3000
"""
Mesh axes are chosen together if there are at most this many alternatives. The number is
small, so that one search takes only seconds: layouts are searched for many plans.
"""

_WHAT = "auto-parallel"


@dataclass(frozen=True)
class SearchedPlan:
    """
    A distributed program with the results of its layout search.

    - `module`: the distributed program;
    - `layouts`: the layouts, or None if they were not searched;
    - `bound`: a lower bound in seconds for all layouts on the same mesh; 0 if unknown;
    - `simulated`: the simulation of the program, or the simulated step of a pipeline
      without a program; None if unknown.
    """

    module: ModuleOp
    layouts: ChosenLayouts | None = None
    bound: float = 0.0
    simulated: Simulation | Step | None = None


class SearchedLayouts:
    """
    Distributes programs with the layouts that are fastest within the memory of the
    devices. The mesh is the program's own mesh if it declares one, else the mesh of a
    plan (`LayoutPlan`).

    Pipelines that differ only in the number of ranks, the schedule and the stages share
    one layout search. If the fastest layouts without a memory limit fit a pipeline, it
    needs no separate search.
    """

    def __init__(self, requests: Requests):
        self.requests = requests
        # What the last layouts of pipelines were found for, and the annotated program.
        self._known: tuple[object, tuple[ModuleOp, ChosenLayouts]] | None = None

    def search(
        self,
        module: ModuleOp,
        configuration: LayoutPlan,
        profiles: Sequence[Profile] = (),
        known: ChosenLayouts | None = None,
        cutoff: float = inf,
        pipeline_step: PipelineStep | None = None,
    ) -> SearchedPlan:
        """
        Distributes a program. `module` may be changed or replaced. Raises DistIRError
        if the program cannot be distributed in this way.

        - `configuration`: the plan, without its layouts;
        - `pipeline_step`: a function that simulates a pipeline without building its
          program;
        - `known`: the layouts of this plan if an earlier search found them, or, for a
          pipeline, the fastest layouts of any pipeline without a memory limit;
        - `cutoff`: in seconds. The search stops early if a step takes longer than this
          with every choice of layouts, even if devices never wait.

        Collectives are merged into buckets if the plan has that option. Communication
        is not overlapped yet.
        """
        c = configuration
        limit = self.requests.limit
        clock = None if limit is None else Clock(limit)
        cluster, mesh = self._prepare(module, c)
        limits = Limits(
            None,
            "auto",
            gap=_GAP,
            seconds=self.requests.seconds,
            together=_TOGETHER,
            cutoff=cutoff * c.p,
        )
        if not c.is_pipelined:
            if known is not None:
                apply_layouts(module, mesh, known)
                partition(module, lower=True, price=copy_price(mesh, cluster))
                if c.buckets:
                    bucket_collectives_of(module)
                return SearchedPlan(module, known)
            search = FittedSearch(
                mesh, cluster, None, limits, profiles, clock, buckets=c.buckets
            )
            plan = search.run(module)
            found = plan.found
            bound = 0.0
            if found and found.axis_groups == 1 and not found.tied and not found.left:
                bound = found.bound
            return SearchedPlan(plan.module, plan.layouts, bound, plan.simulated)
        search = FittedSearch(
            mesh, cluster, c.pipeline, limits, profiles, clock, pipeline_step, c.buckets
        )
        same = (c.batch, c.axes, c.checkpoint, c.k)
        before = self._known[1] if self._known and self._known[0] == same else None
        if known is not None and (before is None or known.without_sends is not None):
            before = None, known
        plan = search.run(module, before)
        base = plan.base or plan
        if not base.layouts.limited and base.layouts.without_sends is None:
            self._known = same, (base.annotated, base.layouts)
        return SearchedPlan(plan.module, plan.layouts, 0.0, plan.simulated)

    def replay(
        self, module: ModuleOp, configuration: LayoutPlan, layouts: ChosenLayouts
    ) -> None:
        """
        Distributes a program with `layouts` that `search` found. Overlaps communication
        and merges collectives into buckets if the plan `configuration` has these
        options. Raises DistIRError if the program does not match.
        """
        cluster, mesh = self._prepare(module, configuration)
        apply_layouts(module, mesh, layouts)
        self._finish(module, configuration, copy_price(mesh, cluster))

    def annotate(
        self, module: ModuleOp, configuration: LayoutPlan, layouts: ChosenLayouts
    ) -> None:
        """
        Adds the mesh of the plan to a program, and annotates the program with `layouts`
        that `search` found. This is the first part of `replay`. Raises DistIRError if
        the program does not match.
        """
        _, mesh = self._prepare(module, configuration)
        apply_layouts(module, mesh, layouts)

    def follow(
        self,
        module: ModuleOp,
        configuration: LayoutPlan,
        arguments: Sequence[PlannedArgument],
        *,
        stored: bool,
    ) -> dict[str, int]:
        """
        Distributes a program that shares only some arguments with the program whose
        layouts were searched. `arguments` get the layouts that were found for them, and
        the layouts of other values are propagated. With `stored`, parameters arrive in
        the smaller parts of their optimizer states. Returns the stage of each argument
        by name, if the plan has a pipeline. Raises DistIRError if the layouts are not
        possible.
        """
        cluster, mesh = self._prepare(module, configuration)
        place_arguments(module, mesh, arguments, stored=stored)
        follow_requests(module, mesh)
        return self._finish(module, configuration, copy_price(mesh, cluster))

    def _finish(
        self, module: ModuleOp, configuration: LayoutPlan, price: Price
    ) -> dict[str, int]:
        """
        Runs the steps after the choice of layouts: partitions the program and, if the
        plan has these options, makes the pipeline, merges collectives into buckets and
        overlaps communication. Returns the stage of each argument by name, if the plan
        has a pipeline.
        """
        stages: dict[str, int] = {}
        if configuration.is_pipelined:
            partition(module, price=price)
            pipeline = configuration.pipeline
            stages = make_pipeline_as_asked(module, pipeline, pipeline.stages)
            lower_reshards(module)
        else:
            partition(module, lower=True, price=price)
        if configuration.buckets:
            bucket_collectives_of(module)
        if configuration.overlap:
            overlap_communication(module)
        return stages

    def _prepare(
        self, module: ModuleOp, configuration: LayoutPlan
    ) -> tuple[ClusterOp, Mesh]:
        """
        Runs the steps before the layout search: sets up recomputation, adds the mesh if
        the program has none, and annotates the user's requests. Returns the cluster and
        the mesh. Raises DistIRError if the program has no cluster or declares a mesh
        with the micro-batch axis.
        """
        cluster = cluster_in(module, "", _WHAT)
        if cluster is None:
            raise DistIRError(f"{_WHAT}: the module has no device.cluster; add one")
        checkpoint(module, configuration.checkpoint)
        own = [op for op in module.body.block.ops if isinstance(op, MeshOp)]
        if any(name == TIME_AXIS for op in own for name, _ in op.axes.data):
            raise DistIRError(
                f"{_WHAT}: the module's device.mesh has {TIME_AXIS!r}, the micro-batch axis, "
                f"which is no axis of devices; remove the mesh"
            )
        time = [(TIME_AXIS, configuration.k)] if configuration.is_pipelined else []
        mesh = (
            Mesh.of(own[0])
            if own
            else add_mesh(module, [*time, *configuration.axes], cluster, _WHAT)
        )
        request_shards(module, mesh, self.requests.shard)
        keep_whole(module, mesh, self.requests.whole)
        return cluster, mesh
