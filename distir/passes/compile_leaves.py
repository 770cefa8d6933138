"""`compile-leaves`: lets `torch.compile` make kernels of functions without calls."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.lowering.rewrites.functions import compile_leaves
from distir.passes.options import DistIRPass


@dataclass(frozen=True)
class CompileLeavesPass(DistIRPass):
    """
    Gives the mark `dist.compiled = "inductor"` to each function that calls no other
    function. `torch.compile` then makes kernels of the function. Functions that run as
    CUDA graphs keep their mark. This is the last step of `lower --compile`, after
    `choose-graphs`.
    """

    name = "compile-leaves"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        compile_leaves(op)
