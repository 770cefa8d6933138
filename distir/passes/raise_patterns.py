"""`raise-patterns`: replaces groups of ops by single operators with the same result."""

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
    Replaces groups of ops, as exporters and models write them, by single operators. Run
    it on a sequential program, before `differentiate`: gradients are then single ops
    too, and the values within a group are never kept.

    - Attention, `softmax(cap(scale Q K^T) + masks) V` over [batch, heads, length,
      features], becomes `onnx.Attention`. The scale can be applied to scores, queries
      or keys. Scores can have a soft cap `c tanh(s / c)`. Keys and values can be
      repeated for groups of query heads. The softmax can have a wider type. Batch and
      heads can be merged for the products. Masks can be added to the scores or
      overwrite them. A mask that is known to be causal becomes `is_causal`; other masks
      (windows, ALiBi) are added up. Attention stays written out if one op would compute
      something else, such as for a mask that can be minus infinity for all keys of a
      query. It also stays written out if a mask depends on a parameter, or if
      probabilities are dropped; `train-dropout` replaces attention with dropout.
    - Casts and reshapes that keep the type of their operand, and dropout outside of
      training, are removed.
    - `w x / sqrt(mean(x^2) + epsilon)` becomes `onnx.RMSNormalization`, in f32 and f64.
    - `0.5 x (1 + erf(x / sqrt 2))` and its tanh form become `onnx.Gelu`; `x sigmoid(x)`
      becomes `onnx.Swish`.
    - Several `onnx.Slice` ops that divide a value along one dimension become one
      `onnx.Split`.

    With `attention=false` attention stays written out.
    """

    name = "raise-patterns"

    attention: bool = same_option(StepOptions, "fused_attention")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        raise_patterns(op, attention=self.attention)
