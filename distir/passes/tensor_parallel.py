"""`tensor-parallel`: splits parameters over a mesh axis, by the sharding rules alone."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.planning.axes.tensor_parallel import split_parameters


@dataclass(frozen=True)
class TensorParallelPass(DistIRPass):
    """
    Chooses which parameters to split over `axis`, and how, and annotates them.

    Nothing here knows names or architectures: strategies come from the sharding rules, the
    choice from `AxisPlanner`. On a transformer it finds Megatron's scheme: columns of the
    first and rows of the second matrix of each block, a fused QKV by heads through run
    lengths, and one all-reduce per block. The rows of a table, such as those of an
    embedding that is not tied to a head, are split where a device would keep more of them
    than it looks up, in a training step for a micro-batch: that saves memory, of states
    too. What cannot be split evenly stays whole; a note in the module attribute
    `dist.notes` says so.
    """

    name = "tensor-parallel"

    axis: str = "t"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        split_parameters(op, self.axis)
