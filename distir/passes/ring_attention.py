"""
`ring-attention`: passes blocks of keys and values around instead of gathering them.
"""

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
    Turns attention whose keys and values are gathered over `axis` into a ring (Liu et
    al. 2023). There are as many steps as devices. In each step, every device computes
    attention on one block of keys and values, and at the same time passes this block on
    to the next device (`collective.permute`). The results of the steps are merged
    (`train.merge_attention`). The gradients of a block travel with it. Attention with a
    mask stays unchanged. Run the pass after `lower-reshard`.
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
