"""
`activation-checkpoint`: keeps fewer values of the forward pass; the backward pass
recomputes the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.memory.checkpointing import checkpoint


@dataclass(frozen=True)
class ActivationCheckpointPass(DistIRPass):
    """
    Keeps fewer residuals (values of the forward pass that gradients need) of
    differentiated functions, such as layers, and recomputes the rest in the backward
    pass. This saves memory and costs time.

    - `policy`: the values that each call keeps; its backward pass recomputes all
      others. `none` keeps all residuals. `full` keeps the arguments of the layer only;
      the backward pass repeats the part of the forward pass that gradients need (Chen
      et al. 2016). `whole` repeats the whole forward pass, as `torch.utils.checkpoint`
      does. This includes ops that no gradient needs, such as the last product of a GPT
      layer, and is therefore slower. Use this policy to predict software that does the
      same. `selective` recomputes the ops of attention between its two products of
      activations (Korthikanti et al. 2022). `products` keeps the results of products,
      convolutions and attention, after their reduction over devices if they are sums.
      This policy also keeps tokens at their experts, which devices would exchange
      again, and recomputes the rest, such as norms and activation functions. This is
      the usual policy of PyTorch's selective activation checkpointing. `offload`
      recomputes nothing: activations wait in the host's memory. `full:0.5` or
      `full:1/2` applies the policy to half of the layers, evenly spread; the other half
      keeps everything. `full:6/6+4/6+0/7` applies it to 6 of the first 6 layers, to 4
      of the next 6 and to none of the last 7. This helps in pipelines: the first stages
      hold values of the most micro-batches. `full:1/2:products` or
      `full:6/6+4/6+0/7:products` gives the other layers the policy `products`.
      `save:onnx.MatMul+train.attention` keeps the results of the listed ops and
      recomputes all other results that a gradient needs. `recompute:onnx.Gelu` keeps
      the results of all ops but the listed ones. `save` and `recompute` keep a result
      even if gradients only need values computed from the result (the policies
      MUST_SAVE and MUST_RECOMPUTE of PyTorch's selective activation checkpointing).
    - `every`: apply the policy to every n-th layer only; by default to all layers.
    - `layers`: apply the policy to the layers with these indices in program order only;
      by default to all layers.

    A call with the attribute `dist.recompute`, which holds a policy, has that policy
    instead, also in `distribute` and in the searches.
    """

    name = "activation-checkpoint"

    policy: str = "full"
    every: int = 1
    layers: tuple[int, ...] = ()

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        checkpoint(op, self.policy, self.every, self.layers)
