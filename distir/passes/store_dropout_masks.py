"""
`store-dropout-masks`: lets a backward take the masks of dropout instead of drawing them.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.dropout import with_masks


@dataclass(frozen=True)
class StoreDropoutMasksPass(DistIRPass):
    """
    Makes every `train.dropout` also return its mask, a byte for each element, which the
    backward that `differentiate` makes then takes instead of drawing it again.
    `differentiate{dropout-masks=stored}` does so between `train-dropout` and the gradients.
    """

    name = "store-dropout-masks"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        with_masks(op)
