"""`overlap-communication`: runs collectives and sends while devices compute."""

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

    - Reductions of gradients (data parallelism or ZeRO) start right after the
      computation of their operand, also within a called function: the function then
      returns while its reduction is still running. Updates of parameters follow the
      order in which gradients arrive.
    - Gathers of parameters (ZeRO stage 3) start early: at most `ahead` other gathered
      parameters are first used between the start of a gather and the use of its result.
      Gathers in a layer's function move in front of its call, so that the parameters of
      a layer arrive while the layer before it computes. A larger `ahead` costs memory,
      because more gathered parameters wait for their use.
    - Gathers of activations that a forward pass kept in parts (sequence parallelism)
      start before the contraction in front of their use.
    - Products of activations and a matrix whose results are added up over devices
      (tensor parallelism) are computed in 2, 4 or 8 pieces of their tokens. Each piece
      is reduced while the next one is computed. Products whose rows are gathered
      (sequence parallelism) are cut in the same way: the next piece is gathered while
      the current one is computed.
    - Where a rank of a pipeline computes a forward pass and then a backward pass that
      does not need its results, and both exchange tokens of experts, one function
      computes both. While the tokens of one micro-batch travel, the device computes
      with the other.
    - Sends occupy neither the sender nor the receiver.

    `kinds` selects the communication that overlaps, by default all kinds: `dp`,
    reductions of gradients; `params`, gathers of parameters; `tp`, other collectives;
    `pp`, sends. `profile`: the speeds that devices reach in practice, as in `simulate`.
    If the program has buckets (`bucket-collectives`), the pass forms them anew.

    The program computes the same values, and transfers between two devices keep their
    order. The simulator compares several variants: all of the above, the same without
    moving gathers out of functions, only `dp` and `pp`, and with and without products
    in pieces and forward passes beside backward passes. The fastest variant that fits
    into memory replaces the program; if none is faster, the program stays unchanged. A
    note in `dist.notes` gives the saved time and the additional memory.
    """

    name = "overlap-communication"

    ahead: int = 1
    kinds: tuple[str, ...] = ()
    profile: tuple[str, ...] = same_option(ProfileOptions, "profile")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        # It imports the simulator, which takes long.
        from distir.planning.distribution.overlap import overlap_communication

        kinds = self.kinds or KINDS
        overlap_communication(op, self.ahead, kinds, profiles=self.profile)
