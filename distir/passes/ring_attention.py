"""`ring-attention`: devices pass blocks of keys and values on instead of gathering them."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.passes.options import DistIRPass
from distir.transforms.sequences.ring_attention import ring_attention


@dataclass(frozen=True)
class RingAttentionPass(DistIRPass):
    """
    Turns attention on keys and values that are gathered over `axis` into a ring (Liu et al.
    2023), after `lower-reshard`: in as many steps as there are devices, each computes attention
    on one block and passes it on meanwhile (`collective.permute`), and the results are merged
    (`train.merge_attention`). The gradients of a block travel with it. Attention with a mask
    is left as it is.
    """

    name = "ring-attention"

    axis: str = "c"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not ring_attention(op, self.axis).made:
            raise DistIRError(
                f"ring-attention: no attention has keys and values that are gathered over "
                f"axis {self.axis!r} for it alone; run context-parallel, propagate-sharding, "
                f"partition and lower-reshard first. Attention with a mask cannot be a ring"
            )
