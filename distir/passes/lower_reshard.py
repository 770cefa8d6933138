"""`lower-reshard`: replaces changes of layout by collectives and sends."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.resharding import lower_reshards


@dataclass(frozen=True)
class LowerReshardPass(DistIRPass):
    """
    Replaces every `dist.reshard` (a change of layout) by the cheapest sequence of
    collectives. `distir.sharding.reshard` computes the cost from the bytes that each
    device sends.
    """

    name = "lower-reshard"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        lower_reshards(op)
