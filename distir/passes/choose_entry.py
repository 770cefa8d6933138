"""`choose-entry`: leaves one entry of a program that has several."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from distir.options import same_option
from distir.passes.options import DistIRPass
from distir.program import replace_program
from distir.program.entries import one_entry
from distir.program.options import EntryOptions


@dataclass(frozen=True)
class ChooseEntryPass(DistIRPass):
    """
    Leaves of a program with several entries (functions with `dist.entry`, such as
    `@prefill` and `@decode`) the entry `entry` alone, as `@main`, with the functions
    that it calls. Other passes work on programs with one entry; `distribute` takes both.
    """

    name = "choose-entry"

    entry: str = same_option(EntryOptions, "entry", default="")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        replace_program(op, one_entry(op, self.entry))
