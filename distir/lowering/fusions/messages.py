"""Makes one op of the collectives that travel in one message."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Operation
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    prop_def,
    var_operand_def,
    var_result_def,
)
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.collective import AllReduceOp, CollectiveOp, bucket_of
from distir.dialects.dist import SCOPE
from distir.lowering.emitter import Call, torch_emitter
from distir.program import functions
from distir.transforms.projection import MESH


@irdl_op_definition
class MessageOp(IRDLOperation):
    """
    Several collectives of one kind over one group in one message, by the helper `function`
    with these `settings` (Python text). Like `torch.call`, it is only written in memory, by
    this file.
    """

    name = "torch.message"

    inputs = var_operand_def()
    outputs = var_result_def()
    axes = prop_def(ArrayAttr[StringAttr])
    function = prop_def(StringAttr)
    settings = prop_def(StringAttr)

    def __init__(self, bucket: Sequence[CollectiveOp]):
        first = bucket[0]
        super().__init__(
            operands=[[op.source for op in bucket]],
            result_types=[[op.result.type for op in bucket]],
            properties={
                "axes": first.axes,
                "function": StringAttr(_function(first)),
                "settings": StringAttr(_settings(bucket)),
            },
        )
        for key in (MESH, SCOPE):
            if key in first.attributes:
                self.attributes[key] = first.attributes[key]
        for result, op in zip(self.outputs, bucket, strict=True):
            result.name_hint = op.result.name_hint


def _function(op: CollectiveOp) -> str:
    name = op.name.removeprefix("collective.")
    return f"start_{name}" if op.is_asynchronous else name


def _settings(bucket: Sequence[CollectiveOp]) -> str:
    """
    Returns the arguments that follow the group: dimensions, unless whole tensors are
    reduced.
    """
    parts: list[str] = []
    first = bucket[0]
    if not isinstance(first, AllReduceOp):
        parts.append(repr(tuple(_dim_and_run(op) for op in bucket)))
    if first.reduction is not None:
        parts.append(f"reduction={first.reduction.data!r}")
    return ", ".join(parts)


def _dim_and_run(op: CollectiveOp) -> tuple[int | None, int | None]:
    found = [None if a is None else a.value.data for a in (op.dim, op.run)]
    return found[0], found[1]


@torch_emitter("torch.message")
def message(call: Call) -> str:
    op = call.op
    assert isinstance(op, MessageOp)
    items = call.names.listed(list(op.inputs))
    one = "," if len(items) == 1 else ""
    parts = [f"({', '.join(items)}{one})", call.names.group(op), op.settings.data]
    given = ", ".join(part for part in parts if part)
    return f"{call.helper('buckets')}.{op.function.data}({given})"


def fuse_messages(module: ModuleOp) -> None:
    """Makes one op of the collectives of each message, in every function."""
    for function in functions(module).values():
        for op in list(function.body.block.ops):
            if not isinstance(op, CollectiveOp) or op.is_joined or op.parent is None:
                continue
            bucket = bucket_of(op)
            if len(bucket) > 1:
                _replace(bucket)


def _replace(bucket: Sequence[CollectiveOp]) -> None:
    new = MessageOp(bucket)
    Rewriter.insert_op(new, InsertPoint.before(bucket[0]))
    for result, op in zip(new.outputs, bucket, strict=True):
        op.result.replace_all_uses_with(result)
    olds: list[Operation] = list(bucket)
    for op in reversed(olds):
        Rewriter.erase_op(op)
