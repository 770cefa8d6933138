"""`auto-parallel`: finds the best plan, with all searches together."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.dialects.device import ClusterOp
from distir.errors import DistIRError
from distir.passes.options import DistIRPass
from distir.planning.auto.auto import AutoSearch, auto_search
from distir.planning.auto.results import emit, nothing_found
from distir.planning.distribution.meshes import check_sequential
from distir.planning.plans.options import RequestOptions, SearchOptions
from distir.planning.requests import Requests
from distir.transforms.expert_shards import assume_imbalance


@dataclass(frozen=True)
class AutoParallelPass(RequestOptions, SearchOptions, DistIRPass):
    """
    Distributes a program over its cluster by the fastest plan that a search finds.

    The search tries the plans of the grid of `search-grid`, and searched layouts
    (`search-sharding`) on each mesh of all devices. From the best of these plans it
    goes on, changing one option at a time: ZeRO stages, checkpoint policies, pipelines
    with searched layouts, meshes of more axes, schedules, stages (`search-stages`),
    numbers of micro-batches and overlapped communication. It skips plans that a lower
    bound of their time or memory rules out, and simulates all other plans. `dist.notes`
    records the chosen plan, the number of plans tried, and the distance of its time
    from the lower bound.

    A module with a `device.mesh` keeps that mesh: the search then chooses only the
    layouts on it, checkpointing and overlap. A module with `dist.constrain` ops needs a
    mesh of its own, because these ops name the mesh.

    - `profile`: the speeds that devices reach in practice, as in `simulate`;
    - `world_size`: the number of devices to use; by default all devices of the cluster;
    - `micro_batches`, `zero`, `checkpoint`, `schedules`, `overlap` (`off`, `on`): the
      only values of these options that the search may choose; by default all values;
    - `c`: degrees of context parallelism of the grid's plans, by default 1. For
      sequences of 8192 tokens or more, the later steps of the search also try all
      powers of two;
    - `e`: degrees of expert parallelism, by default all that divide the number of
      experts;
    - `expert_axes`: the axes over which experts are distributed, by default "e" alone,
      and "e" with "t" or "c";
    - `r`: numbers of groups that each hold a copy of the tensors that ZeRO splits, by
      default all;
    - `no_sync` (`off`, `on`): whether ZeRO 3 adds up whole gradients over
      micro-batches, by default both;
    - `offload_states` (`off`, `on`): whether plans of the grid keep the optimizer's
      states in the host's memory. By default the search tries both if the cluster has a
      `host_bandwidth`; it tries `on` for a plan that does not fit into memory
      otherwise;
    - `expert_imbalance`: the assumed load of the busiest device of expert parallelism,
      as a multiple of the mean load;
    - `buckets`: whether neighbouring tensors travel in one message in all plans
      (default); see `bucket-collectives`;
    - `shard`: layouts that arguments must have, each `NAME:DIM=AXIS[:RUN]`; `whole`:
      names of arguments that must not be split;
    - `time_limit`: seconds after which the search takes the best plan found so far;
    - `jobs`: the number of processes; 0 for one on each core.
    """

    name = "auto-parallel"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        check_sequential(op, self.name)
        assume_imbalance(op, self.expert_imbalance)
        search = self._search(op)
        search.run()
        if search.best is None:
            raise DistIRError(f"{self.name}: {nothing_found(search)}")
        emit(op, search)

    def _search(self, module: ModuleOp) -> AutoSearch:
        clusters = [op for op in module.body.block.ops if isinstance(op, ClusterOp)]
        if len(clusters) != 1:
            raise DistIRError(
                f"{self.name}: the module has {len(clusters)} clusters; it needs one to "
                f"distribute over"
            )
        return auto_search(
            [module],
            clusters[0],
            self,
            requests=Requests(self.shard, self.whole),
            time_limit=self.time_limit,
        )
