"""
`partition`: turns annotations into layouts in types, and inserts the communication.
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
    Turns an annotated sequential program into a distributed one. Layouts move from
    attributes into the tensor types. If an op needs an operand in another layout, a
    `dist.reshard` changes its layout. Functions that the entry function does not reach
    are removed.

    With `lower` (default), each change of layout becomes collectives at once.
    """

    name = "partition"

    lower: bool = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        partition(op, lower=self.lower)
