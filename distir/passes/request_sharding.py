"""`request-sharding`: annotates arguments with the splits that a user requests."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.options import same_option
from distir.passes.options import DistIRPass
from distir.planning.distribution.options import DistributionOptions
from distir.planning.requests import request_shards
from distir.sharding.mesh import only_mesh


@dataclass(frozen=True)
class RequestShardingPass(DistIRPass):
    """
    Annotates arguments with splits over axes of the module's mesh. `propagate-sharding`
    derives the layouts of all other values. A split that is impossible is an error, and
    so are two splits of an argument over the same axis.

    - `shard`: the splits, each `NAME:DIM=AXIS[:RUN]`. Dimension DIM of all arguments
      with the source name NAME (with `*`) is split over AXIS, in runs of RUN elements.
      Several axes that split the same dimension are in the order of the mesh.
    """

    name = "request-sharding"

    shard: tuple[str, ...] = same_option(DistributionOptions, "shard")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        request_shards(op, only_mesh(op), self.shard)
