"""`zero`: stores optimizer states, gradients and parameters split over data axes."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.planning.distribution.zero import store_split


@dataclass(frozen=True)
class ZeroPass(DistIRPass):
    """
    ZeRO (Rajbhandari et al. 2020) as a choice of layouts. The pass works on a training
    step that `differentiate` made; the communication follows from the layouts.

    - `stage`: 1: optimizer states are split over `axis`; each device updates its part
      of a parameter, and the parts are gathered. 2: in addition, the gradients of each
      micro-batch are reduced and scattered right after their computation, so that only
      parts of gradients are kept and added up. 3: in addition, parameters are stored
      split, and gathered for each use, or once for all uses in a called function. If a
      loop over layers slices rows out of a stack of parameters, each row is gathered
      for its use, and never the whole stack. If the activations of a few tokens are
      smaller than a parameter, the activations travel instead, and ops compute with the
      parts of the parameter.
    - `axis`: the mesh axes, in the mesh's order. A tensor that is already split over
      one of these axes is split over the remaining ones.
    - `only`: source names (with `*`) of the parameters to which ZeRO applies; by
      default all.

    If `tensor-parallel` has split a dimension before, ZeRO splits each part of it
    further: each device then reduces, scatters and gathers only its own part. Clipped
    gradients are scattered before their norm is computed.

    A tensor that the axes divide in no dimension is flattened, filled up with zeros,
    and stored and updated in this form (`train.flatten`, `dist.flattened`), with a note
    in `dist.notes`. States that no optimizer op updates, such as running statistics,
    stay whole, with a note. Tensors that cannot be split also stay whole if their
    optimizer is outside of the program.
    """

    name = "zero"

    stage: int = 1
    axis: tuple[str, ...] = ("d",)
    only: tuple[str, ...] = ("*",)

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        store_split(op, self.stage, self.axis, self.only)
