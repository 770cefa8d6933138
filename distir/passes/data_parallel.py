"""`data-parallel`: splits the batch of the inputs over a mesh axis."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.planning.distribution.batches import split_batch


@dataclass(frozen=True)
class DataParallelPass(DistIRPass):
    """
    Splits the batch over `axis`: annotates every input and label whose first dimension
    is the batch. The size of the batch is the first dimension of the first input;
    inputs with another first dimension, such as a table of positions, stay whole.
    `propagate-sharding` derives the layouts of all other values.
    """

    name = "data-parallel"

    axis: str = "d"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        split_batch(op, self.axis)
