"""`canonicalize-imported`: writes what exporters emit in fewer operators."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.canonicalization import canonicalize


@dataclass(frozen=True)
class CanonicalizeImportedPass(DistIRPass):
    """
    Rewrites what exporters emit when they are told not to optimize; `distir import` applies
    it at once. `Identity` is removed, unless gradients stop there; `CastLike` becomes
    `Cast`; a `SequenceAt` of a `SplitToSequence` becomes a result of a `Split`, if
    positions and parts are constant and nothing else sees the sequence, and one of a
    `SequenceConstruct` its operand. A `train.expert_places` whose tokens choose by a `TopK`,
    no expert twice, takes at most all tokens of a group for an expert. What is then unused
    is removed.
    """

    name = "canonicalize-imported"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        canonicalize(op)
