"""Replaces a call by the body of its function."""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, UnitAttr, i64
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.dist_attributes import BUCKET, RECOMPUTED, SCOPE
from distir.program import return_op, scope_of
from distir.transforms.repeats.naming import specialise


def inline_call(call: CallOp, callee: FuncOp, first_bucket: int = 0) -> int:
    """
    Replaces `call` by a copy of the body of `callee`. The messages (`dist.bucket`) of
    the copy get new numbers, counted from `first_bucket`. Returns the first number that
    is still free. If the call is marked as a recomputation (`dist.recomputed`), the
    copied ops are marked, too.
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
        if RECOMPUTED in call.attributes:
            copy.attributes[RECOMPUTED] = UnitAttr()
        Rewriter.insert_op(copy, place)
    results = [values.get(value, value) for value in end.arguments]
    for old, new in zip(call.results, results, strict=True):
        if old.name_hint is not None:
            new.name_hint = new.name_hint or old.name_hint
        old.replace_all_uses_with(new)
    Rewriter.erase_op(call)
    return first_bucket + len(buckets)


def bucket_number(op: Operation) -> int:
    """
    Returns the number of the message (`dist.bucket`) in which an op travels, or -1 if
    the op is in no message.
    """
    number = BUCKET.of(op.attributes)
    return -1 if number is None else number
