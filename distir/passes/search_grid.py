"""`search-grid`: finds the best of a grid of plans."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.errors import DistIRError
from distir.hardware import load_cluster
from distir.hardware.options import TargetOptions
from distir.passes.options import DistIRPass
from distir.planning.annotations import add_notes
from distir.planning.distribution.distribute import distribute
from distir.planning.grid import (
    GridPlan,
    Programs,
    Space,
    batch_of,
    chosen,
    nothing_fits,
    ranked,
    run,
    trains,
)
from distir.planning.plans.options import SearchOptions
from distir.planning.plans.programs import replace_cluster
from distir.transforms.expert_shards import assume_imbalance


@dataclass(frozen=True)
class SearchGridPass(TargetOptions, SearchOptions, DistIRPass):
    """
    Distributes a program by the best plan of a grid. A plan of the grid consists of
    degrees d x e x c x t x p that use all devices, a number of micro-batches, a ZeRO
    stage, a checkpoint policy, a pipeline schedule and overlap or not. The pass
    distributes the program by each plan and simulates it. It chooses the plan with the
    highest throughput among those that fit into memory (the DistIR paper, section 5).
    `dist.notes` names this plan.

    - `cluster`: a built-in cluster or a cluster file; by default the module's own
      cluster;
    - `devices`: the number of devices to which the given cluster is scaled;
    - `micro_batches`: numbers of micro-batches of pipelines, by default 2, 4, ... 128.
      If given, a training step on a single rank uses them too;
    - `zero`, `checkpoint`, `offload_states`, `overlap`: values to try, by default 0,
      `none`, `off` and `off`;
    - `schedules`: pipeline schedules to try, by default the default of `pipeline`;
    - `c`, `e`: degrees of context and of expert parallelism, by default 1;
    - `expert_axes`: the axes over which experts are distributed, by default "e" alone;
    - `r`: numbers of groups that each hold a copy of the tensors that ZeRO splits, by
      default 1;
    - `no_sync`: whether ZeRO 3 adds up whole gradients over micro-batches, by default
      `off`;
    - `expert_imbalance`: the assumed load of the busiest device of expert parallelism,
      as a multiple of the mean load;
    - `buckets`: whether neighbouring tensors travel in one message in all plans
      (default); see `bucket-collectives`;
    - `profile`, `world_size`, `jobs`: as in `auto-parallel`.
    """

    name = "search-grid"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        cluster = self._cluster(op)
        assume_imbalance(op, self.expert_imbalance)
        space = Space.of(self, (batch_of(op),), trains(op), cluster.size)
        programs = Programs.of([op], cluster, self.profile)
        found = run(programs, space.plans(), self.jobs)
        results = sorted((r for some in found for r in some), key=lambda r: r.plan)
        best = ranked(results)
        if not best:
            raise DistIRError(f"search-grid: {nothing_fits(results)}")
        if self.cluster:
            replace_cluster(op, cluster)
        assert isinstance(best[0].plan, GridPlan)
        distribute(op, best[0].plan.options())
        add_notes(op, [chosen(best[0], results)])

    def _cluster(self, module: ModuleOp) -> ClusterOp:
        if self.cluster:
            return load_cluster(self.cluster, self.devices)
        own = [op for op in module.body.block.ops if isinstance(op, ClusterOp)]
        if len(own) != 1:
            raise DistIRError(
                f"search-grid: the module has {len(own)} clusters; name the one to "
                f"distribute over with `cluster=`"
            )
        return own[0]
