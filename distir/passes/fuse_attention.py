"""`fuse-attention`: attention that is written out becomes one op."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.patterns.fusing import fuse_attention


@dataclass(frozen=True)
class FuseAttentionPass(DistIRPass):
    """
    Puts `onnx.Attention` in the place of `softmax(scale Q K^T + mask) V` over [batch, heads,
    length, features], as exporters and Hugging Face's models write it out: with the scale on
    scores, queries or keys, keys and values repeated for groups of query heads, and a mask.
    Run it on a sequential program, before `differentiate`: scores are then never in memory,
    in training neither.

    A mask that is known to hide what is behind each query becomes `is_causal`. Attention
    stays written out where one op would compute something else (a mask that may be minus
    infinity for all keys of a query), and where a parameter goes into the mask.
    """

    name = "fuse-attention"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        fuse_attention(op)
