"""
`decompose-collectives`: replaces collectives that a target lacks by other collectives.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.collective_decomposition import DECOMPOSED, decompose


@dataclass(frozen=True)
class DecomposeCollectivesPass(DistIRPass):
    """
    Replaces collectives of a distributed program, for targets that lack them: a
    reduce-scatter by an all-reduce and a slice, an all-to-all by an all-gather and a
    slice. `collectives` are the collectives to replace, by default both kinds.
    """

    name = "decompose-collectives"

    collectives: tuple[str, ...] = DECOMPOSED

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        decompose(op, self.collectives)
