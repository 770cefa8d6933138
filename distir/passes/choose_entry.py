"""`choose-entry`: keeps one entry of a program that has several."""

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
    Keeps only the entry `entry` of a program with several entries, which are functions
    with `dist.entry`, such as `@prefill` and `@decode`. The entry becomes `@main`; the
    functions that it calls stay. In a module without such entries, `entry` names a
    public function: it becomes `@main`, and the other functions stay. Most passes work
    on programs with one entry only; `distribute` also takes programs with several
    entries.
    """

    name = "choose-entry"

    entry: str = same_option(EntryOptions, "entry", default="")

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        replace_program(op, one_entry(op, self.entry))
