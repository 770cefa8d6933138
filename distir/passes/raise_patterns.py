"""`raise-patterns`: groups of ops that are one operator become it."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.patterns.raising import raise_patterns


@dataclass(frozen=True)
class RaisePatternsPass(DistIRPass):
    """
    Puts one operator in the place of what exporters and models write out. Run it on a
    sequential program, before `differentiate`: then gradients are single ops too, and what is
    between the ops of a group is never kept.

    - `softmax(cap(scale Q K^T) + masks) V` over [batch, heads, length, features] becomes
      `onnx.Attention`: with the scale on scores, queries or keys, a soft cap `c tanh(s / c)`,
      keys and values repeated for groups of query heads, and masks that are added or that
      scores are filled by. One that is known to hide what is behind each query becomes
      `is_causal`, others (ALiBi) are added up. Attention stays written out where one op would
      compute something else (a mask that may be minus infinity for all keys of a query, a
      dropout of the probabilities), and where a parameter goes into a mask.
    - `w x / sqrt(mean(x^2) + epsilon)` becomes `onnx.RMSNormalization`, in f32 and f64.
    - `0.5 x (1 + erf(x / sqrt 2))` and its tanh form become `onnx.Gelu`, `x sigmoid(x)` becomes
      `onnx.Swish`.
    - `onnx.Slice`s that take a value apart along one dimension become one `onnx.Split`.

    With `attention=false` attention stays written out.
    """

    name = "raise-patterns"

    attention: bool = True

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        raise_patterns(op, attention=self.attention)
