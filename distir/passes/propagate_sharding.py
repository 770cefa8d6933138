"""`propagate-sharding`: derives a layout for every value from a few requested layouts."""

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
    Propagates the layouts that arguments (`dist.layout`) and `dist.constrain` request along
    the sharding rules, across calls, one mesh axis after the other. Where requests meet,
    the cheapest combination wins (`distir.planning.axes`); a request that cannot be met is
    an error. Every op ends up with the layouts in which it needs its operands
    (`dist.operand_layouts`) and gives its results (`dist.result_layouts`); `partition` puts
    them into the types.
    """

    name = "propagate-sharding"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        propagate_sharding(op, only_mesh(op))
