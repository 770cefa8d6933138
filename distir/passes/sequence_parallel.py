"""`sequence-parallel`: splits sequences over the tensor axis between the blocks."""

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
    Megatron's sequence parallelism (Korthikanti et al. 2022). The pass constrains the
    inputs and outputs of every normalisation and of its gradient to be split over
    `axis` along the sequence (the dimension before the last). For a normalisation
    written out in elementary ops, this concerns its input. The sharding rules do the
    rest: the all-reduce after a row-split matrix becomes a reduce-scatter, the
    column-split matrix after the normalisation gathers its operand, and the ops in
    between work on parts.

    - `residuals`: the form in which a layer keeps these split values for its backward
      pass. `parts`: the part of this device, which is gathered again for the gradient
      of the matrix (section 4.2.2). `whole`: the gathered value, which takes more
      memory, and no more communication than tensor parallelism alone.
    """

    name = "sequence-parallel"

    axis: str = "t"
    residuals: str = "parts"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        split_sequences(op, axis_mesh(op, self.axis), self.axis, self.residuals)
