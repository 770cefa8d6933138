"""`expand-float8`: spells out products in 8-bit floats."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.precision.float8 import expand_float8


@dataclass(frozen=True)
class ExpandFloat8Pass(DistIRPass):
    """
    Spells out each `train.float8_linear`: the scales of its factors, their rounding to 8 bits
    and the product of these. Unlike the op, these can be split over devices: a scale is the
    least of those of the parts. Run it after `differentiate`.
    """

    name = "expand-float8"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        expand_float8(op)
