"""
`partition`: turns annotations into layouts in types, with the communication they need.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.partitioning import partition


@dataclass(frozen=True)
class PartitionPass(DistIRPass):
    """
    Turns an annotated sequential program into a distributed one: layouts move into the
    tensor types, and where an op needs an operand in another layout than it has, a
    `dist.reshard` brings it there. With `lower`, reshards become collectives at once.
    Functions that the entry does not reach are dropped.
    """

    name = "partition"

    lower: bool = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        partition(op, lower=self.lower)
