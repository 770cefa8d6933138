"""`decompose-collectives`: writes collectives that a target lacks with others."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.transforms.collective_decomposition import DECOMPOSED, decompose


@dataclass(frozen=True)
class DecomposeCollectivesPass(DistIRPass):
    """
    Writes collectives of a distributed program with others, for targets that lack them:
    a reduce-scatter as an all-reduce and a slice, an all-to-all as an all-gather and a
    slice. `collectives` are the collectives that are replaced, by default both.
    """

    name = "decompose-collectives"

    collectives: tuple[str, ...] = DECOMPOSED

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        decompose(op, self.collectives)
