"""
`tensor-parallel`: splits parameters over a mesh axis, by the sharding rules alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.planning.axes.tensor_parallel import split_parameters


@dataclass(frozen=True)
class TensorParallelPass(DistIRPass):
    """
    Chooses which parameters to split over `axis`, and in which dimension, and annotates
    these parameters.

    The pass knows no names or architectures: the possible strategies come from the
    sharding rules, and `AxisPlanner` chooses among them. On a transformer it finds
    Megatron's scheme: the first matrix of each block is split by columns and the second
    by rows, a fused QKV matrix is split by heads (with run lengths), and each block has
    one all-reduce.

    A table, such as an embedding that is not tied to a head, is split by rows if each
    device would then still keep more rows than it looks up (in a training step: for a
    micro-batch). This saves memory, also for the optimizer's states. A parameter that
    cannot be split evenly stays whole, with a note in the module attribute
    `dist.notes`.
    """

    name = "tensor-parallel"

    axis: str = "t"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        split_parameters(op, self.axis)
