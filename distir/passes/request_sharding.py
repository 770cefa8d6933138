"""`request-sharding`: annotates arguments with splits that a user asks for."""

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
    Annotates arguments with splits over axes of the module's mesh; what follows for other
    values is left to `propagate-sharding`. A split that cannot be done is an error, and so
    is a second one of an argument over the same axis.

    - `shard`: each `NAME:DIM=AXIS[:RUN]`: dimension DIM of the arguments with this source
      name (with `*`) is split over AXIS, in runs of RUN elements. Axes that split the
      same dimension do so in the order of the mesh.
    """

    name = "request-sharding"

    shard: tuple[str, ...] = same_option(DistributionOptions, "shard")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        request_shards(op, only_mesh(op), self.shard)
