"""`activation-checkpoint`: keep fewer residuals and compute them again in the backward."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.gradients.call_pairs import call_pairs, renumber_saved
from distir.passes.options import DistIRPass
from distir.program import (
    drop_unused_results,
    entry_function,
    erase_unreachable,
    functions,
)
from distir.transforms.checkpointing import POLICIES, Recomputing


@dataclass(frozen=True)
class ActivationCheckpointPass(DistIRPass):
    """
    Trades residuals for recomputation, per call of a differentiated function (a layer).

    - `policy`: `none`; `full`: the backward gets the arguments of the layer only and
      runs its forward again, as far as gradients need it (Chen et al. 2016); `whole`: it
      runs all of it again, as `torch.utils.checkpoint` does, also the last product of a
      GPT's layer, which no gradient needs: slower, and here to predict software that does
      so; `selective`: it recomputes what attention computes between its two products of
      activations (Korthikanti et al. 2022).
    - `every`: apply the policy to every n-th layer only; `layers`: to these only
      (indices in program order). All layers by default.
    """

    name = "activation-checkpoint"

    policy: str = "full"
    every: int = 1
    layers: tuple[int, ...] = ()

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.policy not in POLICIES:
            raise DistIRError(
                f"activation-checkpoint: there is no policy {self.policy!r}; choose one "
                f"of {', '.join(POLICIES)}"
            )
        if self.every < 1:
            raise DistIRError("activation-checkpoint: `every` must be at least 1")
        if self.policy == "none":
            return
        pairs = call_pairs(entry_function(op), functions(op))
        if not pairs:
            raise DistIRError(
                "activation-checkpoint: the program calls no differentiated function; "
                "run outline-repeats and differentiate first"
            )
        if self.layers and max(self.layers) >= len(pairs):
            raise DistIRError(
                f"activation-checkpoint: there is no layer {max(self.layers)}; the "
                f"program has {len(pairs)}"
            )
        recomputing = Recomputing(op)
        for i, pair in enumerate(pairs):
            if i % self.every or (self.layers and i not in self.layers):
                continue
            drop = recomputing.dropped(pair, self.policy)
            if drop:
                recomputing.apply(pair, drop, self.policy)
        erase_unreachable(op)
        for name, kept in drop_unused_results(op).items():
            renumber_saved(op, name, kept)
