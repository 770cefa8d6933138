"""`project`: makes the program of one device."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.program import replace_program
from distir.transforms.projection import project


@dataclass(frozen=True)
class ProjectPass(DistIRPass):
    """
    Turns a distributed program into the program of the device `rank`. This program has
    local shapes, only the ops of that device, collectives with lists of ranks, sends
    and receives.

    The receiver of an asynchronous send starts to receive right after its previous
    transfer, and waits right before it uses the value. An asynchronous collective is
    also awaited right before its result is used, possibly in the caller of the function
    that started it. Arguments and results keep their layout in the attribute
    `dist.layout`.
    """

    name = "project"

    rank: int = 0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        replace_program(op, project(op, self.rank))
