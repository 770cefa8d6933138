"""`compile-leaves`: lets a compiler make kernels of functions that call no others."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.lowering.rewrites.functions import compile_leaves
from distir.passes.options import DistIRPass


@dataclass(frozen=True)
class CompileLeavesPass(DistIRPass):
    """
    Marks functions that call no others with `dist.compiled = "inductor"`, so that
    `torch.compile` makes kernels of them; CUDA graphs stay. The last step of `lower
    --compile`, after `choose-graphs`.
    """

    name = "compile-leaves"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        compile_leaves(op)
