"""`lower-reshard`: replaces abstract layout changes by collectives and sends."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.resharding import lower_reshards


@dataclass(frozen=True)
class LowerReshardPass(DistIRPass):
    """
    Replaces every `dist.reshard` by the collectives that are cheapest, which
    `distir.sharding.reshard` finds from the bytes that each device has to send.
    """

    name = "lower-reshard"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        lower_reshards(op)
