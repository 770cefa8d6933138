"""`sequence-parallel`: splits the sequence over the tensor axis between the blocks."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.planning.annotations import axis_mesh
from distir.transforms.sequences.sequence_parallel import split_sequences


@dataclass(frozen=True)
class SequenceParallelPass(DistIRPass):
    """
    Megatron's sequence parallelism (Korthikanti et al. 2022): the inputs and outputs of
    every normalisation and of its gradient, also the input of one written out in elementary
    ops, are constrained to be split along the sequence (the dimension before the last) over
    the tensor axis. The sharding rules do the rest: the all-reduce after a row-split matrix
    becomes a reduce-scatter, the column-split matrix after the normalisation gathers, and
    what lies between works on parts.

    - `residuals`: what a layer keeps of that for its backward. `parts`: this device's part,
      gathered again for the gradient of the matrix (section 4.2.2); `whole`: what the
      forward gathered, which takes more memory and no more communication than tensor
      parallelism alone.
    """

    name = "sequence-parallel"

    axis: str = "t"
    residuals: str = "parts"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        split_sequences(op, axis_mesh(op, self.axis), self.axis, self.residuals)
