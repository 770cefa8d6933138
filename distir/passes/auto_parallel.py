"""`auto-parallel`: finds the best plan with all searches together."""

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


@dataclass(frozen=True)
class AutoParallelPass(RequestOptions, SearchOptions, DistIRPass):
    """
    Distributes a program over its cluster in the fastest way that was found. The search
    tries the points of `search-grid`'s grid, searched layouts (`search-sharding`) on each
    mesh of all devices, and, starting from the best of these, ZeRO stages, checkpoint
    policies, pipelines with searched layouts, meshes of more axes, schedules, stages
    (`search-stages`), numbers of micro-batches and overlapped communication, one option at
    a time. Plans that a bound rules out are not distributed; the simulator judges the
    others. `dist.notes` says what was chosen, from what, and how far from the bound it is.

    A module with a `device.mesh` keeps it: its axes are fixed, and only the layouts on it,
    checkpointing and overlap are searched. `dist.constrain` names such a mesh.

    - `profile`: what devices reach in practice, as in `simulate`;
    - `world_size`: devices to use; all of the cluster by default;
    - `micro_batches`, `zero`, `checkpoint`, `schedules`, `overlap` (`off`, `on`): the only
      values of these options that may be chosen; by default all;
    - `c`: degrees of context parallelism of the grid's points, by default 1, and for sequences
      of 8192 tokens and more all powers of two in the neighbours of these points; `e`: degrees of
      expert parallelism, by default all that divide the number of experts; `r`: numbers of groups
      that hold copies of what ZeRO splits, by default all; `no_sync` (`off`, `on`): whether ZeRO 3
      adds up whole gradients over micro-batches, by default both; `offload_states` (`off`, `on`):
      whether points of the grid keep the optimizer's states in the host's memory, by default both
      where the cluster says `host_bandwidth`, tried where memory does not suffice;
    - `buckets`: whether neighbouring tensors travel in one message in all plans (default);
      see `bucket-collectives`;
    - `shard`: layouts that arguments must have, each `NAME:DIM=AXIS[:RUN]`; `whole`: names
      of arguments that must not be split;
    - `time_limit`: seconds; when they are over, the best plan found is taken;
    - `jobs`: processes; 0 for one on each core.
    """

    name = "auto-parallel"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        check_sequential(op, self.name)
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
