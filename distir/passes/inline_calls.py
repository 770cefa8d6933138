"""
`inline-calls`: replaces every call by the body of its function, the inverse of
`outline-repeats`.

A function that several layers share has `*` in its scopes, such as `layers.*.fc`.
Inlining replaces the `*` by the number in the scope of the call, such as 3 in
`layers.3`.
"""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.rewriter import Rewriter

from distir.passes.options import DistIRPass
from distir.program import callees_first, functions
from distir.program.functions import check_executed
from distir.transforms.repeats.inlining import bucket_number, inline_call


def inline_calls(module: ModuleOp) -> None:
    """
    Inlines all calls, callees first, and removes the private functions that were
    inlined. Raises DistIRError for recursive calls, and for more ops than
    `check_executed` allows.
    """
    known = functions(module)
    roots = [function for function in known.values() if not function.is_declaration]
    inlined: dict[FuncOp, None] = {}
    check_executed(module, roots)
    for function in callees_first(module, roots):
        ops = list(function.body.block.ops)
        free = 1 + max((bucket_number(op) for op in ops), default=-1)
        for op in ops:
            if isinstance(op, CallOp):
                callee = known[op.callee.string_value()]
                free = inline_call(op, callee, free)
                inlined[callee] = None
    for function in inlined:
        if function.sym_visibility == StringAttr("private"):
            Rewriter.erase_op(function)


class InlineCallsPass(DistIRPass):
    """
    Replaces every call by the body of its function, and removes the private functions
    that were inlined. Raises DistIRError for recursive calls, or if a run executes more
    than 10 million ops.
    """

    name = "inline-calls"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        inline_calls(op)
