"""`store-dropout-masks`: stores the masks of dropout for the backward pass."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.dropout import with_masks


@dataclass(frozen=True)
class StoreDropoutMasksPass(DistIRPass):
    """
    Makes every `train.dropout` also return its mask, with one byte for each array
    element. The backward pass that `differentiate` makes then takes this mask instead
    of drawing it again. With `dropout-masks=stored`, `differentiate` does this itself,
    after `train-dropout`.
    """

    name = "store-dropout-masks"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        with_masks(op)
