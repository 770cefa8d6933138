"""`pack-saved-tensors`: packs values that the same calls pass on into one list."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.lowering.rewrites.saved_tensors import pack_saved_tensors
from distir.passes.options import DistIRPass


@dataclass(frozen=True)
class PackSavedTensorsPass(DistIRPass):
    """
    Packs results of a function into one list (`torch.pack`) if the same calls take all
    of these results, such as the tensors that the forward function of a layer saves for
    its backward function. The calls unpack the list (`torch.unpack`). This is the sixth
    step of `lower`, after `reuse-operands`.
    """

    name = "pack-saved-tensors"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        pack_saved_tensors(op)
