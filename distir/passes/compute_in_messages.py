"""`compute-in-messages`: computes gradients of weights in the memory of their message."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.lowering.rewrites.messages import compute_in_messages
from distir.passes.options import DistIRPass


@dataclass(frozen=True)
class ComputeInMessagesPass(DistIRPass):
    """
    Lets matrix products write their results directly into the memory of the message
    that all-reduces these results, which saves a copy. Typical products are the
    gradients of weights.

    The memory is a `torch.bucket`, the message a `torch.message`, and each product
    becomes a `torch.product_into`. The pass does not change a message if less than nine
    tenths of its elements come from such products.

    The pass works on the program of one rank. It is the third step of `lower`, after
    `fuse-operators`; `lower --compile` omits it.
    """

    name = "compute-in-messages"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        compute_in_messages(op)
