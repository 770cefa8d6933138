"""`raise-patterns`: replaces groups of ops that are one operator by it."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.gradients.options import StepOptions
from distir.options import same_option
from distir.passes.options import DistIRPass
from distir.transforms.patterns.raising import raise_patterns


@dataclass(frozen=True)
class RaisePatternsPass(DistIRPass):
    """
    Replaces what exporters and models write out by single operators. Run it on a sequential
    program, before `differentiate`: then gradients are single ops too, and the values
    between the ops of a group are never kept.

    - `softmax(cap(scale Q K^T) + masks) V` over [batch, heads, length, features] becomes
      `onnx.Attention`: with the scale on scores, queries or keys, a soft cap `c tanh(s /
      c)`, keys and values repeated for groups of query heads, a softmax in a wider type,
      batch and heads merged for the products, and masks that are added or that fill the
      scores. A mask that is known to be causal becomes `is_causal`, others (windows, ALiBi)
      are added up. Attention stays written out if one op would compute something else (a
      mask that may be minus infinity for all keys of a query), if a mask depends on a
      parameter, and if probabilities are dropped: `train-dropout` makes one op of that.
    - Casts and reshapes to the type that a value has, and dropouts outside of training, go.
    - `w x / sqrt(mean(x^2) + epsilon)` becomes `onnx.RMSNormalization`, in f32 and f64.
    - `0.5 x (1 + erf(x / sqrt 2))` and its tanh form become `onnx.Gelu`, `x sigmoid(x)`
      becomes `onnx.Swish`.
    - `onnx.Slice`s that divide a value along one dimension become one `onnx.Split`.

    With `attention=false` attention stays written out.
    """

    name = "raise-patterns"

    attention: bool = same_option(StepOptions, "fused_attention")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        raise_patterns(op, attention=self.attention)
