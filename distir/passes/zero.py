"""`zero`: stores optimizer states, gradients and parameters split over the data axis."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.planning.distribution.zero import store_split


@dataclass(frozen=True)
class ZeroPass(DistIRPass):
    """
    ZeRO (Rajbhandari et al. 2020) as a choice of layouts, on a training step made by
    `differentiate`; the communication follows from them.

    - `stage` 1: optimizer states are split over `axis`; each device updates its part of a
      parameter and the parts are gathered. 2: gradients are reduced and scattered as soon
      as they are computed, those of each micro-batch by themselves, so that none is kept
      whole and parts add up. 3: parameters are stored split and
      gathered for each use, or once for all uses in a called function. Where the activations
      of few tokens are smaller than a parameter, these are moved instead, and ops compute
      with its parts.
    - `axis`: the mesh axes, in the mesh's order. What one of them splits already is split over
      the others.
    - `only`: source names (with `*`) of the parameters this applies to; all by default.

    Of a dimension that is split already (`tensor-parallel`, before this pass) the parts are
    split, so that each device reduces, scatters and gathers its own part alone.
    Gradients that are clipped are scattered before their norm is computed.
    What the axes divide in no dimension is stored flat, with zeros behind it, and updated
    like that (`train.flatten`, `dist.flattened`); a note says so. Stays whole, with a note,
    states that no optimizer's op updates, such as running statistics, and what an
    optimizer outside of the program is to update.
    """

    name = "zero"

    stage: int = 1
    axis: tuple[str, ...] = ("d",)
    only: tuple[str, ...] = ("*",)

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        store_split(op, self.stage, self.axis, self.only)
