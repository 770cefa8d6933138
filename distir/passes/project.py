"""`project`: makes the program of one device."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.errors import DistIRError
from distir.passes.options import DistIRPass
from distir.program import replace_program
from distir.transforms.projection import project, project_for_all_ranks


@dataclass(frozen=True)
class ProjectPass(DistIRPass):
    """
    Turns a distributed program into the program of the device `rank`. This program has
    local shapes, only the ops of that device, collectives with lists of ranks, sends
    and receives.

    The receiver of an asynchronous send starts to receive right after its previous
    transfer, and waits right before it uses the value. An asynchronous collective is
    also awaited right before the use of its result, possibly in the caller of the
    function that started it. Arguments and results keep their layout in the attribute
    `dist.layout`.

    With `spmd`, the result is one program for all ranks instead. Its value
    `collective.spmd.rank` is the number of the rank, from which the program computes
    coordinates and the groups of collectives. The number of ranks along the outermost
    mesh axis is not in the code. The pass refuses a program whose ranks run different
    code, such as a pipeline.
    """

    name = "project"

    rank: int = 0
    spmd: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.spmd and self.rank:
            raise DistIRError(
                "project: with spmd there is one program for all ranks; leave out rank"
            )
        one = project_for_all_ranks(op) if self.spmd else project(op, self.rank)
        replace_program(op, one)
