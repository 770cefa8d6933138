"""`outline-text`: makes functions of what the program of a rank does repeatedly."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.lowering.rewrites.functions import outline
from distir.passes.options import DistIRPass


@dataclass(frozen=True)
class OutlineTextPass(DistIRPass):
    """
    Makes a function of ops that the program of one rank repeats, such as the collectives
    around the calls of layers, so that Python has them once; `torch.repeat` marks it. The
    second step of `lower`, after `fuse-operators`.
    """

    name = "outline-text"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        outline(op)
