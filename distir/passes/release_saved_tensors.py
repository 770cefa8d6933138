"""`release-saved-tensors`: empties lists of saved tensors after their last use."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.lowering.rewrites.saved_tensors import release_saved_tensors
from distir.passes.options import DistIRPass


@dataclass(frozen=True)
class ReleaseSavedTensorsPass(DistIRPass):
    """
    Marks a `torch.unpack` with `releases` if no caller needs its list afterwards. The
    op then empties the list, so that its tensors are freed one by one. This is the
    seventh step of `lower`, after `pack-saved-tensors`.
    """

    name = "release-saved-tensors"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        release_saved_tensors(op)
