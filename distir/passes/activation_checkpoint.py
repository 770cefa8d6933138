"""`activation-checkpoint`: keeps fewer residuals and recomputes them in the backward."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.memory.checkpointing import checkpoint


@dataclass(frozen=True)
class ActivationCheckpointPass(DistIRPass):
    """
    Trades residuals for recomputation, per call of a differentiated function (a layer).

    - `policy`: `none`; `full`: the backward gets the arguments of the layer only and runs
      its forward again, as far as gradients need it (Chen et al. 2016); `whole`: it runs
      all of it again, as `torch.utils.checkpoint` does, including the last product of a
      GPT's layer, which no gradient needs: this is slower, and serves to predict software
      that does it; `selective`: it recomputes what attention computes between its two
      products of activations (Korthikanti et al. 2022); `products`: it keeps the results of
      products, convolutions and attention, reduced over devices if they are sums, and
      recomputes the rest, such as norms and activation functions (the usual policy of
      PyTorch's selective activation checkpointing); `offload`: it recomputes nothing, and
      activations are in the host's memory meanwhile. With `full:0.5` or `full:1/2` half of
      the layers, evenly spread, have the policy, the others keep everything. With
      `full:6/6+4/6+0/7` 6 of the first 6 layers have it, 4 of the next 6 and none of the last
      7: such as on the stages of a pipeline, the first of which keeps values of the most
      micro-batches. With `full:1/2:products`, or `full:6/6+4/6+0/7:products`, the other
      layers have `products`.
      `save:onnx.MatMul+train.attention` keeps the results of the ops of these names, and computes
      all others again that a gradient needs; `recompute:onnx.Gelu` keeps those of all other ops.
      They are kept even where gradients only need what follows from them (the policies of
      PyTorch's selective activation checkpointing, MUST_SAVE and MUST_RECOMPUTE).
    - `every`: apply the policy to every n-th layer only; `layers`: to these only (indices
      in program order). All layers by default.

    A call with `dist.recompute`, a policy, has that one instead, also in `distribute` and
    the searches.
    """

    name = "activation-checkpoint"

    policy: str = "full"
    every: int = 1
    layers: tuple[int, ...] = ()

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        checkpoint(op, self.policy, self.every, self.layers)
