"""`fuse-operators`: groups of ONNX operators become single calls of PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.lowering.fusions import fuse
from distir.passes.options import DistIRPass


@dataclass(frozen=True)
class FuseOperatorsPass(DistIRPass):
    """
    Puts single operators in the place of groups, as `raise-patterns` does, a `torch.call` in
    the place of what PyTorch alone computes in one call (linear layers, a product and a
    sum), and one `torch.updates` in that of all updates of parameters that are alike. The
    target `torch` does so on the program of each rank; run it after `project` to see what comes of it.
    Groups are recognised by what they compute, never by names. What nothing uses any more
    goes.

    A `torch.call` holds an expression of Python that is run, so no file that is read in
    may have one.
    """

    name = "fuse-operators"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        fuse(op)
