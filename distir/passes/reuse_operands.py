"""`reuse-operands`: lets ops work in the memory of an operand."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.lowering.rewrites.reuse import reuse_operands
from distir.passes.options import DistIRPass


@dataclass(frozen=True)
class ReuseOperandsPass(DistIRPass):
    """
    Lets ops of the program of one rank compute into the memory of an operand that nobody
    else needs: a sum becomes `torch.add_into`; all-reduces and `torch.add_look_ups` have the
    attribute `torch.in_place`. The third step of `lower`, after `outline-text`.
    """

    name = "reuse-operands"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        reuse_operands(op)
