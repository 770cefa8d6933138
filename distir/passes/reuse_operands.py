"""`reuse-operands`: lets ops write their result into the memory of an operand."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.lowering.rewrites.reuse import reuse_operands
from distir.passes.options import DistIRPass


@dataclass(frozen=True)
class ReuseOperandsPass(DistIRPass):
    """
    Lets ops in the program of one rank write their result into the memory of an operand
    that no other op needs. A sum becomes `torch.add_into`; all-reduces and
    `torch.add_look_ups` get the attribute `torch.in_place`. This is the fifth step of
    `lower`, after `outline-text`.
    """

    name = "reuse-operands"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        reuse_operands(op)
