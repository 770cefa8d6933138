"""
`canonicalize-imported`: rewrites unoptimized output of exporters with fewer operators.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.canonicalization import canonicalize


@dataclass(frozen=True)
class CanonicalizeImportedPass(DistIRPass):
    """
    Simplifies the ops that exporters write when they do not optimize. `distir import`
    applies this pass automatically. Unused ops are removed at the end.

    `Identity` is removed, unless gradients stop there. `CastLike` becomes `Cast`.
    `SequenceAt` of a `SplitToSequence` becomes a result of a `Split`, if the position
    and the parts are constant and no other op uses the sequence. `SequenceAt` of a
    `SequenceConstruct` becomes the operand at that position. If the experts of a token
    in `train.expert_places` come from a `TopK`, and are thus all different, the
    capacity of an expert is lowered to the number of tokens in a group.
    """

    name = "canonicalize-imported"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        canonicalize(op)
