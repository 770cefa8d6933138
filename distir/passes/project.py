"""`project`: the program that one device runs."""

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
    Turns a distributed program into the program of one device: local shapes, only that
    device's ops, collectives with explicit groups, sends and receives. A receiver
    of what is sent asynchronously starts right after its transfer before that one, and
    waits right before it uses the value. So does whoever uses what an asynchronous
    collective gives, also in the caller of the function that started it. Arguments and
    results keep in
    `dist.layout` the layout that they had.
    """

    name = "project"

    rank: int = 0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        replace_program(op, project(op, self.rank))
