"""`project`: makes the program that one device runs."""

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
    device's ops, collectives with explicit groups, sends and receives. The receiver of an
    asynchronous send starts right after its previous transfer, and waits right before it
    uses the value. So do users of the result of an asynchronous collective, also in the
    caller of the function that started it. Arguments and results keep the layout that they
    had in `dist.layout`.
    """

    name = "project"

    rank: int = 0

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        replace_program(op, project(op, self.rank))
