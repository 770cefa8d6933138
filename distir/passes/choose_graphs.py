"""`choose-graphs`: decides which functions are captured as CUDA graphs."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.lowering.rewrites.functions import choose_graphs
from distir.passes.options import DistIRPass


@dataclass(frozen=True)
class ChooseGraphsPass(DistIRPass):
    """
    Decides which functions with `dist.compiled = "cuda_graph"` CUDA can capture as one
    graph. The others lose the mark, and `torch.no_graph` is the reason. The sixth and last
    step of `lower`, after `release-saved-tensors`: the target `torch` prints the program
    then as it is.
    """

    name = "choose-graphs"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        choose_graphs(op)
