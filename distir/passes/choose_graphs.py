"""`choose-graphs`: decides which functions run as CUDA graphs."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.lowering.rewrites.functions import choose_graphs
from distir.passes.options import DistIRPass


@dataclass(frozen=True)
class ChooseGraphsPass(DistIRPass):
    """
    Checks which functions with `dist.compiled = "cuda_graph"` CUDA can capture as one
    graph. A function that CUDA cannot capture loses this attribute, and gets the reason
    as `torch.no_graph`. This is the eighth and last step of `lower`, after
    `release-saved-tensors`. The target `torch` prints the resulting program without
    further changes.
    """

    name = "choose-graphs"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        choose_graphs(op)
