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
    Replaces groups of ops by single operators, as `raise-patterns` does. Groups that
    only PyTorch computes in one call become ops of the `torch` dialect: linear layers,
    a product and a sum, both gradients of a convolution, the collectives of one
    message, and equal updates of several parameters. The pass recognises groups by
    their computation, never by names, and removes unused ops. This is the second step
    of `lower`, after `await-gradients`. Run it after `project` to see the result.
    """

    name = "fuse-operators"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        fuse(op)
