"""
`train-dropout`: makes dropout drop the same array elements under every distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.gradients.options import StepOptions
from distir.options import same_option
from distir.passes.options import DistIRPass
from distir.transforms.dropout import train_dropouts


@dataclass(frozen=True)
class TrainDropoutPass(DistIRPass):
    """
    Replaces every `onnx.Dropout` in training mode by `train.dropout`. Its random
    numbers depend only on the seed, the op, the step, the call, and the position in the
    whole tensor. Every distribution of the program, and the backward pass, therefore
    draw the same numbers. The program gets a new state `optimizer.step`, the number of
    completed steps, from which called functions get a counter.

    If any `onnx.Dropout` is in training mode, ops without a mode are treated as in
    training mode too: PyTorch's exporters write the dropout inside attention in this
    way. Every `onnx.Dropout` in evaluation mode stays unchanged.

    - `seed`: the seed of all random numbers, 32 bits;
    - `attention`: whether attention with dropout of its probabilities becomes one op,
      `train.dropped_attention`. This op keeps neither probabilities nor masks for its
      gradient. The conditions are those of attention in `raise-patterns`.
    """

    name = "train-dropout"

    seed: int = same_option(StepOptions, "dropout_seed")
    attention: bool = same_option(StepOptions, "fused_attention")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if not 0 <= self.seed < 2**32:
            raise DistIRError(
                f"train-dropout: the seed is {self.seed}; expected a number of 32 bits"
            )
        train_dropouts(op, self.seed, attention=self.attention)
