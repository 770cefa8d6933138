"""`choose-entry`: leaves one entry of a program that has several."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.passes.options import DistIRPass
from distir.program import replace_program
from distir.program.entries import one_entry


@dataclass(frozen=True)
class ChooseEntryPass(DistIRPass):
    """
    Leaves of a program with several entries (functions with `dist.entry`, such as
    `@prefill` and `@decode`) the entry `entry` alone, as `@main`, with the functions
    that it calls. Other passes work on programs with one entry; `distribute` takes both.
    """

    name = "choose-entry"

    entry: str = ""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        replace_program(op, one_entry(op, self.entry))
