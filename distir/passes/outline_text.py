"""`outline-text`: moves repeated ops of a rank's program into functions."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.lowering.rewrites.functions import outline
from distir.passes.options import DistIRPass


@dataclass(frozen=True)
class OutlineTextPass(DistIRPass):
    """
    Moves ops that the program of one rank repeats, such as the collectives around the
    calls of layers, into functions. The Python code of a package then contains them
    once. Each new function has the attribute `torch.repeat`. This is the fourth step of
    `lower`, after `compute-in-messages`.
    """

    name = "outline-text"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        outline(op)
