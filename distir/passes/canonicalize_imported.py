"""`canonicalize-imported`: what exporters emit, in fewer operators."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.canonicalization import canonicalize


@dataclass(frozen=True)
class CanonicalizeImportedPass(DistIRPass):
    """
    Rewrites what exporters emit when they are told not to optimize; `distir import` does so
    at once. `Identity` goes, unless gradients stop there; `CastLike` becomes `Cast`;
    a `SequenceAt` of a `SplitToSequence` becomes a result of a `Split`, where positions and
    parts are constant and nothing else sees the sequence. What nothing uses any more goes.
    """

    name = "canonicalize-imported"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        canonicalize(op)
