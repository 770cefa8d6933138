"""`fuse-operators`: replaces groups of ONNX operators by single calls of PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.lowering.rewrites.fusions import fuse
from distir.passes.options import DistIRPass


@dataclass(frozen=True)
class FuseOperatorsPass(DistIRPass):
    """
    Replaces groups of ops by single operators, as `raise-patterns` does, and by ops of the
    `torch` dialect what only PyTorch computes in one call: linear layers, a product and a
    sum, both gradients of a convolution, the collectives of one message, and all updates of
    parameters that are alike. The first step of `lower`, on the program of each rank; run
    the pass after `project` to see the result. Groups are recognised by what they compute,
    never by names. What is then unused is removed.
    """

    name = "fuse-operators"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        fuse(op)
