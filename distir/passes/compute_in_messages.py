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
    Lets products in the program of one rank that are all-reduced in a message
    (`torch.message`), such as the gradients of weights, be computed in the memory of
    the message, a `torch.bucket`, so that they are not copied to it. Products of the
    same function become `torch.product_into`. This is the third step of `lower`, after
    `fuse-operators`; `lower --compile` leaves it out.
    """

    name = "compute-in-messages"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        compute_in_messages(op)
