"""`outline-between-calls`: moves the ops between calls of layers into functions."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.lowering.rewrites.functions import outline_between_calls
from distir.passes.options import DistIRPass


@dataclass(frozen=True)
class OutlineBetweenCallsPass(DistIRPass):
    """
    Moves the ops between two calls of layers, such as the head of a model with its
    loss, into functions of their own. `compile-leaves` can then compile them. This is
    the fourth step of `lower --compile`, after `outline-text`.
    """

    name = "outline-between-calls"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        outline_between_calls(op)
