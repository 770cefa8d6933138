"""
`inline-calls`: replaces every call by the body of its function, the inverse of
`outline-repeats`.

The number in a call's scope again takes the place of the `*` in the scopes of the function.
"""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist import SCOPE
from distir.passes.options import DistIRPass
from distir.program import callees_first, functions, return_op, scope_of
from distir.transforms.repeats.naming import specialise


def inline_call(call: CallOp, callee: FuncOp) -> None:
    """Replaces the call by a copy of the callee's body."""
    values: dict[SSAValue, SSAValue] = dict(
        zip(callee.body.block.args, call.arguments, strict=True)
    )
    place = InsertPoint.before(call)
    call_scope = scope_of(call)
    end = return_op(callee)
    for op in callee.body.block.ops:
        if op is end:
            continue
        copy = op.clone(values)
        if call_scope:
            copy.attributes[SCOPE] = StringAttr(specialise(scope_of(op), call_scope))
        Rewriter.insert_op(copy, place)
    results = [values.get(value, value) for value in end.arguments]
    for old, new in zip(call.results, results, strict=True):
        if old.name_hint is not None:
            new.name_hint = new.name_hint or old.name_hint
        old.replace_all_uses_with(new)
    Rewriter.erase_op(call)


def inline_calls(module: ModuleOp) -> None:
    """
    Inlines all calls, callees first, and removes the private functions that were called.
    Raises DistIRError for recursive calls.
    """
    known = functions(module)
    roots = [function for function in known.values() if not function.is_declaration]
    inlined: dict[FuncOp, None] = {}
    for function in callees_first(module, roots):
        for op in list(function.body.block.ops):
            if isinstance(op, CallOp):
                callee = known[op.callee.string_value()]
                inline_call(op, callee)
                inlined[callee] = None
    for function in inlined:
        if function.sym_visibility == StringAttr("private"):
            Rewriter.erase_op(function)


class InlineCallsPass(DistIRPass):
    """Inlines all calls, and removes the private functions that were called."""

    name = "inline-calls"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        inline_calls(op)
