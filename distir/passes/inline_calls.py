"""
`inline-calls`: replaces every call by the body of its function, the inverse of
`outline-repeats`.

A function that several layers share has `*` in its scopes, such as `layers.*.fc`.
Inlining replaces the `*` by the number in the scope of the call, such as 3 in
`layers.3`.
"""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist_attributes import BUCKET, SCOPE
from distir.passes.options import DistIRPass
from distir.program import callees_first, functions, return_op, scope_of
from distir.program.functions import check_executed
from distir.transforms.repeats.naming import specialise


def inline_call(call: CallOp, callee: FuncOp, first_bucket: int = 0) -> int:
    """
    Replaces `call` by a copy of the body of `callee`. Messages (`dist.bucket`) of the
    copy get new numbers from `first_bucket` on. Returns the first number that is still
    free.
    """
    buckets: dict[Attribute, Attribute] = {}
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
            copy.attributes[SCOPE] = SCOPE.attr(specialise(scope_of(op), call_scope))
        if BUCKET in copy.attributes:
            number = IntegerAttr(first_bucket + len(buckets), i64)
            own = buckets.setdefault(copy.attributes[BUCKET], number)
            copy.attributes[BUCKET] = own
        Rewriter.insert_op(copy, place)
    results = [values.get(value, value) for value in end.arguments]
    for old, new in zip(call.results, results, strict=True):
        if old.name_hint is not None:
            new.name_hint = new.name_hint or old.name_hint
        old.replace_all_uses_with(new)
    Rewriter.erase_op(call)
    return first_bucket + len(buckets)


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


def bucket_number(op: Operation) -> int:
    """
    Returns the number of the message (`dist.bucket`) in which an op travels, or -1 if
    the op is in no message.
    """
    number = BUCKET.of(op.attributes)
    return -1 if number is None else number


class InlineCallsPass(DistIRPass):
    """
    Replaces every call by the body of its function, and removes the private functions
    that were inlined. Raises DistIRError for recursive calls, or if a run executes more
    than 10 million ops.
    """

    name = "inline-calls"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        inline_calls(op)
