"""`search-sharding`: finds the fastest layouts of all values."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp, MeshOp
from distir.errors import DistIRError, one_of
from distir.hardware.options import ProfileOptions, TargetOptions
from distir.interpreters.simulator.profiles.files import load_profiles
from distir.options import same_option
from distir.passes.options import DistIRPass
from distir.pipelining import PipelineOptions
from distir.pipelining.options import axes_of
from distir.planning.annotations import add_notes
from distir.planning.distribution.meshes import add_mesh, check_sequential, cluster_in
from distir.planning.expectations import check_expectations
from distir.planning.graph.unruled import unruled_ops
from distir.planning.layouts.fitted import FittedSearch, search_without_cluster
from distir.planning.layouts.search import LEVELS, SOLVERS, LayoutResult, Limits
from distir.planning.plans.options import RequestOptions
from distir.planning.requests import keep_whole, request_shards
from distir.program import replace_program
from distir.sharding.mesh import TIME_AXIS, Mesh
from distir.sharding.verification import verify_distribution
from distir.solver.clock import SEARCHING, Clock

COSTS = ("simulated", "unit")

_GAP = 1e-3


@dataclass(frozen=True)
class SearchShardingPass(PipelineOptions, DistIRPass):
    """
    Distributes a sequential program over a mesh with the layouts that take the least
    time (as Rhino, section 4).

    The search knows no architectures. The possible layouts of an op follow from its
    sharding rule. The simulator gives the cost of each op and of each change of layout.
    The search proves that its choice is the best of all combinations, or within a known
    distance of the best. `partition` then makes the program of the chosen layouts, and
    `dist.notes` records the outcome. With simulated costs, the pass also simulates data
    parallelism over all axes, and takes it if it is faster than the layouts found.

    - `axes`: the mesh on the first devices of the cluster, `NAME=SIZE` for each axis. A
      module with a `device.mesh` keeps that mesh.
    - `cluster`: the symbol of the module's `device.cluster`; unnecessary if the module
      has only one. If the module has none: the name of a built-in cluster, or a cluster
      file.
    - `costs`: `simulated`: times on the cluster. `unit`: needs no cluster; it counts
      floating-point operations, with a low price for each byte sent and a lower one for
      each byte read or written, as `distribute` does. With `unit`, only `memory` limits
      the memory, and nothing is simulated.
    - `solver`: `highs` or `cbc` for integer programming; `auto` chooses one of them.
    - `memory`: bytes that each device may use; by default the memory of the smallest
      device. The result is simulated. If it does not fit, the search runs again with a
      tighter limit.
    - `gap`: stop when the plan is within this fraction of the best possible one. By
      default 0.001. In a large program, repeated calls share their choices. By default
      the gap is then measured from the best plan that shares. If `gap` is given, a
      second search without sharing follows, if there is time.
    - `time_limit`: stop after this many seconds of the pass, with the best layouts so
      far. An interruption has the same effect.
    - `level`: `O3` solves for the whole program. `O2` solves for one segment between
      critical nodes after the other (Rhino, section 4.3.2): faster for meshes of
      several axes, but without a proof.
    - `profile`: the speeds that devices reach in practice, as in `simulate`.
    - `p`, `k`: the number of stages of a pipeline, and of micro-batches. `axes` is then
      the mesh of each stage. The proof covers all micro-batches on the mesh of the
      first stage. With p = 1, `k` micro-batches accumulate gradients.
    - `schedule`, `chunks`, `stages`, `schedule_file`, `blocking_sends`: options of the
      pipeline; see `pipeline`.
    - `shard`: layouts that arguments must have, each `NAME:DIM=AXIS[:RUN]`; `whole`:
      names of arguments that must not be split. `dist.constrain` fixes the layouts of
      other values.
    """

    name = "search-sharding"

    axes: tuple[str, ...] = ()
    cluster: str = same_option(TargetOptions, "cluster")
    costs: str = "simulated"
    solver: str = "auto"
    memory: float | None = None
    gap: float | None = None
    time_limit: float | None = same_option(RequestOptions, "time_limit")
    level: str = "O3"
    profile: tuple[str, ...] = same_option(ProfileOptions, "profile")
    shard: tuple[str, ...] = same_option(RequestOptions, "shard")
    whole: tuple[str, ...] = same_option(RequestOptions, "whole")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        clock = Clock(self.time_limit and SEARCHING * self.time_limit)
        check_sequential(op, self.name)
        solver = one_of("solver", self.solver, SOLVERS, self.name)
        level = one_of("level", self.level, LEVELS, self.name)
        costs = one_of("costs", self.costs, COSTS, self.name)
        cluster = cluster_in(op, self.cluster, self.name)
        if costs == "unit" and (self.profile or self.is_pipelined):
            raise DistIRError(
                "search-sharding: unit costs know neither profiles of devices nor pipelines; "
                "leave out `profile`, `p` and `k`, or choose costs=simulated"
            )
        self.check_pipeline(self.name)
        if self.stage_meshes:
            raise DistIRError(
                "search-sharding: the layouts of all stages are found on meshes of one shape; "
                "leave out stage_meshes, or use `distribute`, which takes it"
            )
        if self.p < 1:
            raise DistIRError(f"{self.name}: p={self.p} stages; choose 1 or more")
        mesh = self._mesh(op, cluster)
        request_shards(op, mesh, self.shard)
        keep_whole(op, mesh, self.whole)
        limits = Limits(
            self.memory,
            solver,
            _GAP if self.gap is None else self.gap,
            self.time_limit,
            level,
            release=self.gap is not None,
        )
        unruled = unruled_ops(op)
        with clock:
            if costs == "unit":
                note = _note(search_without_cluster(op, mesh, limits, clock))
            else:
                note = self._simulated(op, mesh, cluster, limits, clock)
        verify_distribution(op)
        check_expectations(op)
        add_notes(op, [*unruled, f"{self.name}: {note}"])

    def _simulated(
        self,
        module: ModuleOp,
        mesh: Mesh,
        cluster: ClusterOp | None,
        limits: Limits,
        clock: Clock,
    ) -> str:
        """
        Distributes `module`, in place, with the layouts that are fastest by simulation.
        Returns the text of the note about the outcome. Raises DistIRError if `cluster`
        is None.
        """
        if cluster is None:
            raise DistIRError(
                "search-sharding: the module has no device.cluster, which says what "
                "everything costs; name one with `cluster=`, or choose costs=unit"
            )
        profiles = load_profiles(self.profile, cluster)
        pipeline = self if self.is_pipelined else None
        search = FittedSearch(mesh, cluster, pipeline, limits, profiles, clock)
        usual = search.data_parallel(module)
        plan = found = search.run(module)
        if usual is not None and usual.rank < found.rank:
            plan = usual
        search.check(plan)
        replace_program(module, plan.module)
        if plan is found:
            return _note(found.found)
        return (
            f"data parallelism, which takes {plan.step.seconds:.6g} s as simulated; the "
            f"layouts found take {found.step.seconds:.6g} s: {_note(found.found)}"
        )

    def _mesh(self, module: ModuleOp, cluster: ClusterOp | None) -> Mesh:
        meshes = [o for o in module.body.block.ops if isinstance(o, MeshOp)]
        if len(meshes) > 1 or (meshes and self.axes):
            raise DistIRError(
                "search-sharding works on one mesh; give `axes`, or a module with one "
                "device.mesh"
            )
        if meshes and self.is_pipelined:
            raise DistIRError(
                "search-sharding makes the meshes of a pipeline itself; remove the "
                "device.mesh of the module, and give `axes`"
            )
        axes = axes_of(self.axes, self.name)
        known = Mesh.of(meshes[0]).axes if meshes else axes
        if any(name == TIME_AXIS for name, _ in known):
            raise DistIRError(
                f"search-sharding: {TIME_AXIS!r} is the micro-batch axis, which is no axis of "
                f"devices; say with `k` how many micro-batches there are"
            )
        if meshes:
            return Mesh.of(meshes[0])
        if not self.axes and not self.is_pipelined:
            raise DistIRError(
                "search-sharding: the module has no device.mesh; say with `axes` how many "
                'devices there are, for example axes="d=2","t=4"'
            )
        time = [(TIME_AXIS, self.k)] if self.is_pipelined else []
        return add_mesh(module, [*time, *axes], cluster, self.name)


def _note(found: LayoutResult | None) -> str:
    """
    Returns a description of the search result `found`. None stands for a search that
    ran out of time before it found any layouts.
    """
    if found is not None:
        return str(found)
    return (
        "the time was over before any layouts were found; arguments are split as was "
        "asked for, and nothing else is"
    )
