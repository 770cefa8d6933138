"""`context-parallel`: splits the sequences of the inputs over a mesh axis."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.planning.distribution.context import split_context


@dataclass(frozen=True)
class ContextParallelPass(DistIRPass):
    """
    Splits sequences over `axis`: annotates every input and label whose second dimension
    is the sequence. The length of the sequence is the second dimension of the first
    input with two dimensions or more; inputs with another second dimension stay whole.
    `propagate-sharding` derives the layouts of all other values.

    The pass also prepares attention over sequences of that length. Queries stay split.
    Keys and values are split in the same way and gathered for attention only. Their
    gradients are reduced and scattered. Causal attention gets the positions of its
    queries and keys as operands (`train.placed_attention`), because the queries of a
    device can begin anywhere.

    - `order`: with `contiguous`, each device has neighbouring tokens; with `cyclic`,
      short runs of tokens are dealt out to the devices in turn, so that all devices
      have equal work under a causal mask.
    """

    name = "context-parallel"

    axis: str = "c"
    order: str = "contiguous"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        split_context(op, self.axis, self.order)
