"""`sequence-parallel`: between the blocks, split the sequence over the tensor axis."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.planning.annotations import axis_mesh
from distir.transforms.sequence_parallel import split_sequences


@dataclass(frozen=True)
class SequenceParallelPass(DistIRPass):
    """
    Megatron's sequence parallelism (Korthikanti et al. 2022): what goes into and comes
    out of every normalization and its gradient, also the input of one written out in
    elementary ops, is constrained to be split along the sequence (the dimension before
    the last) over the tensor axis. From there the rules do the rest: the all-reduce
    behind a row-split matrix becomes a reduce-scatter, the column-split matrix behind
    the normalization gathers, and what lies between works on parts.

    - `residuals`: what a layer keeps of that for its backward. `parts`: this device's
      part, gathered again for the gradient of the matrix (section 4.2.2); `whole`: what
      the forward gathered, which takes more memory and no more traffic than tensor
      parallelism alone.
    """

    name = "sequence-parallel"

    axis: str = "t"
    residuals: str = "parts"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        split_sequences(op, axis_mesh(op, self.axis), self.axis, self.residuals)
