"""`train-dropout`: makes dropout drop the same elements under every distribution."""

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
    Replaces every `onnx.Dropout` in training mode by `train.dropout`. Its random numbers
    depend only on the seed, the op, the step, the call and the position in the whole
    tensor, so that every distribution of the program draws the same ones, and so does the
    backward. The program takes the number of steps done before as the state
    `optimizer.step`, its functions a counter made of it.

    If some Dropout is in training mode, those without a mode count as in training mode too,
    as PyTorch's exporters write the dropout inside attention in this way. Others stay as
    they are.

    - `seed`: of all random numbers, 32 bits;
    - `attention`: whether attention whose probabilities are dropped becomes one op too,
      `train.dropped_attention`, which keeps neither probabilities nor masks for its gradient.
      What `raise-patterns` says of attention holds for it.
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
