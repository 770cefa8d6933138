"""`expand-float8`: replaces matrix products in 8-bit floats by elementary ops."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.precision.float8 import expand_float8


@dataclass(frozen=True)
class ExpandFloat8Pass(DistIRPass):
    """
    Replaces each `train.float8_linear` and `train.block_linear` by elementary ops: the
    scales of both factors, their rounding to 8 or 4 bits, and their product. Unlike the
    single op, these ops can be split over devices: the scale of a split tensor is the
    smallest scale of its parts. Run the pass after `differentiate`.
    """

    name = "expand-float8"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        expand_float8(op)
