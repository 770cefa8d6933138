"""`propagate-sharding`: derives layouts for all values from a few requested layouts."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.planning.axes.sharding_plan import propagate_sharding
from distir.sharding.mesh import only_mesh


@dataclass(frozen=True)
class PropagateShardingPass(DistIRPass):
    """
    Derives a layout for every value from requested layouts: those of arguments
    (`dist.layout`) and those of `dist.constrain` ops.

    Layouts follow the sharding rules, across calls, for one mesh axis after the other.
    If several requests concern an op, the cheapest combination of layouts wins
    (`distir.planning.axes`). A request that cannot be met is an error. Each op gets the
    layouts that it needs for its operands (`dist.operand_layouts`) and the layouts of
    its results (`dist.result_layouts`). `partition` moves these layouts into the types.
    """

    name = "propagate-sharding"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        propagate_sharding(op, only_mesh(op))
