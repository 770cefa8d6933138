"""`collective-to-shard`: lowers collectives to MLIR's `shard` dialect."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.shard_dialect import to_shard


@dataclass(frozen=True)
class CollectiveToShardPass(DistIRPass):
    """
    Lowers the collectives of one program for all ranks (`project{spmd}`) to MLIR's
    `shard` dialect: an all-reduce becomes `shard.all_reduce`, a ring shift becomes
    `shard.shift`, and each mesh gets a `shard.grid`. The pass refuses all other
    collectives, because xDSL's `shard` dialect has no ops for them.
    """

    name = "collective-to-shard"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        to_shard(op)
