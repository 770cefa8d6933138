"""`await-gradients`: interrupts a rank's program where its caller computes the loss."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.lowering.rewrites.interruption import await_gradients
from distir.passes.options import DistIRPass


@dataclass(frozen=True)
class AwaitGradientsPass(DistIRPass):
    """
    Interrupts the program of one rank between its forward and its backward pass, if it
    takes gradients of its results as arguments (`differentiate{loss=outside}`). A
    `torch.await_gradients` returns the results of the forward pass to the caller and
    waits for the gradients. This is the first step of `lower`, on the program of each
    rank.
    """

    name = "await-gradients"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        await_gradients(op)
