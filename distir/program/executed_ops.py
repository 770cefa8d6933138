"""
The number of ops that a run of a program executes, which calls make exponential in the
length of its text: 30 functions that each call the one before twice ask for 2^30.
"""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp

from distir.errors import DistIRError
from distir.program import callees_first

MAX_EXECUTED = 10_000_000
"""The number of ops of a run, each call's counted, that tools follow one by one."""


def check_executed(module: ModuleOp, roots: Iterable[FuncOp]) -> None:
    """
    Raises DistIRError if a run of one of these functions executes more than `MAX_EXECUTED`
    ops, or never ends because calls are recursive.
    """
    executed: dict[str, int] = {}
    for function in callees_first(module, roots):
        name = function.sym_name.data
        ops = list(function.body.block.ops)
        executed[name] = len(ops) + sum(
            executed[op.callee.string_value()] for op in ops if isinstance(op, CallOp)
        )
        if executed[name] > MAX_EXECUTED:
            raise DistIRError(
                f"a run of @{name} executes {executed[name]:,} ops, because functions call "
                f"others several times, and these again; at most {MAX_EXECUTED:,} are "
                f"followed one by one, so write fewer calls"
            )
