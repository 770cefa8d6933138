"""`context-parallel`: split the sequences of the inputs over a mesh axis."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.planning.distribution.context import split_context


@dataclass(frozen=True)
class ContextParallelPass(DistIRPass):
    """
    Annotates every input and label whose second dimension is the sequence with a split of
    it over `axis`. The sequence is the second dimension of the first input that has two;
    inputs with another one stay whole. What follows for every other value is left to
    `propagate-sharding`.

    Attention over sequences of that length is prepared for it: queries stay split, keys and
    values are asked for in the same parts and gathered for the op alone, and their gradients
    are reduced and scattered. Causal attention gets the positions of its queries and keys as
    operands (`train.placed_attention`), as a device's queries begin anywhere.

    - `order`: `contiguous`, a device has neighbouring tokens; `cyclic`, tokens are dealt out
      in turn, in short runs, so that a causal mask leaves equal work to all.
    """

    name = "context-parallel"

    axis: str = "c"
    order: str = "contiguous"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        split_context(op, self.axis, self.order)
