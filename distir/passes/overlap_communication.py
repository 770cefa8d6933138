"""`overlap-communication`: lets collectives and sends run while devices compute."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.hardware.options import ProfileOptions
from distir.options import same_option
from distir.passes.options import DistIRPass
from distir.transforms.overlap.kinds import KINDS


@dataclass(frozen=True)
class OverlapCommunicationPass(DistIRPass):
    """
    Lets devices compute while they communicate. Run it on a distributed program, after
    `lower-reshard`.

    - Reductions (of gradients, data-parallel or ZeRO) start where their operand is
      computed, also in the function that computes it: its result is then in flight when the
      function returns. Optimizer updates come in the order in which gradients arrive.
    - Gathers of parameters (ZeRO stage 3) start `ahead` uses of gathered parameters early;
      those in a layer's function move in front of its call, so that a layer's parameters
      arrive while the layer before is computed. Each use that they are ahead costs the
      memory of its parameters.
    - Gathers of activations that a forward kept in parts (sequence parallelism) start
      before the contraction in front of their use.
    - Products of activations and a matrix whose terms are added up over devices (tensor
      parallelism) are computed in 2, 4 or 8 pieces of their tokens, each added up while the
      next one is computed. Products whose rows are gathered (sequence parallelism) are, too:
      the next piece is gathered while this one's product is computed.
    - Sends leave both sides free.

    `kinds` says which communication does so, by default all: `dp`, reductions of gradients;
    `params`, gathers of parameters; `tp`, other collectives; `pp`, sends. `profile`: what
    devices reach in practice, as in `simulate`. Buckets (`bucket-collectives`) are formed
    anew.

    Neither what is computed changes, nor the order of the transfers between two devices.
    The simulator judges: of this, of the same without moving gathers out of functions, and
    of `dp` and `pp` alone, the fastest that fits into memory is taken; the program stays as
    it is if none is faster. A note says how much was gained and how much memory it costs.
    """

    name = "overlap-communication"

    ahead: int = 1
    kinds: tuple[str, ...] = ()
    profile: tuple[str, ...] = same_option(ProfileOptions, "profile")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        # It brings the simulator, which takes long to import.
        from distir.planning.distribution.overlap import overlap_communication

        kinds = self.kinds or KINDS
        overlap_communication(op, self.ahead, kinds, profiles=self.profile)
