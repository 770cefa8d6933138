"""Makes one op of the collectives that travel in one message."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr, UnitAttr
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    var_operand_def,
    var_result_def,
)
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.collective import (
    AllGatherOp,
    AllReduceOp,
    CollectiveOp,
    bucket_of,
)
from distir.dialects.dist import SCOPE
from distir.lowering.emitter import Call, torch_emitter
from distir.lowering.rewrites.sharing import SharedMemory
from distir.program import entry_function, functions, updated_arguments
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
    overwrites = opt_prop_def(UnitAttr)

    def __init__(
        self, bucket: Sequence[CollectiveOp], targets: Sequence[SSAValue] = ()
    ):
        first = bucket[0]
        super().__init__(
            operands=[[*(op.source for op in bucket), *targets]],
            result_types=[[op.result.type for op in bucket]],
            properties={
                "axes": first.axes,
                "function": StringAttr(_function(first)),
                "settings": StringAttr(_settings(bucket)),
                "overwrites": UnitAttr() if targets else None,
            },
        )
        for key in (MESH, SCOPE):
            if key in first.attributes:
                self.attributes[key] = first.attributes[key]
        for result, op in zip(self.outputs, bucket, strict=True):
            result.name_hint = op.result.name_hint

    @property
    def overwritten(self) -> dict[SSAValue, SSAValue]:
        """The results that are arguments of the program, overwritten, and these."""
        if self.overwrites is None:
            return {}
        targets = self.inputs[len(self.outputs) :]
        return dict(zip(self.outputs, targets, strict=True))


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
    count = len(op.outputs)
    parts = [
        _listed(call, op.inputs[:count]),
        call.names.group(op),
        op.settings.data,
    ]
    if op.overwrites is not None:
        parts.append(f"into={_listed(call, op.inputs[count:])}")
    given = ", ".join(part for part in parts if part)
    return f"{call.helper('buckets')}.{op.function.data}({given})"


def _listed(call: Call, values: Sequence[SSAValue]) -> str:
    items = call.names.listed(list(values))
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def fuse_messages(module: ModuleOp) -> None:
    """Makes one op of the collectives of each message, in every function."""
    entry, memory = entry_function(module), SharedMemory.of(module)
    for op in list(entry.body.block.ops):
        if not isinstance(op, AllGatherOp) or op.parent is None:
            continue  # another op, or one whose message has been made
        if not op.is_joined and not op.is_asynchronous:
            bucket = bucket_of(op)
            targets = _overwritten(bucket, entry, memory)
            if targets:
                _replace(bucket, targets)
    for function in functions(module).values():
        for op in list(function.body.block.ops):
            if not isinstance(op, CollectiveOp) or op.is_joined or op.parent is None:
                continue
            bucket = bucket_of(op)
            if len(bucket) > 1:
                _replace(bucket)


def _overwritten(
    bucket: Sequence[CollectiveOp], entry: FuncOp, memory: SharedMemory
) -> list[SSAValue]:
    """
    The arguments of the program that what is gathered is to be: where each result updates one
    that nothing looks at any more. None where that is not so for all.
    """
    updated = updated_arguments(entry)
    found: list[SSAValue] = []
    for op in bucket:
        uses = list(op.result.uses)
        at = uses[0].index if len(uses) == 1 else -1
        if not isinstance(uses[0].operation, ReturnOp) or at not in updated:
            return []
        argument = entry.args[updated[at]]
        users = memory.users(argument)
        if argument.type != op.result.type or argument in found:
            return []
        if not all(user.is_before_in_block(bucket[0]) for user in users):
            return []
        found.append(argument)
    return found


def _replace(bucket: Sequence[CollectiveOp], targets: Sequence[SSAValue] = ()) -> None:
    new = MessageOp(bucket, targets)
    Rewriter.insert_op(new, InsertPoint.before(bucket[0]))
    for result, op in zip(new.outputs, bucket, strict=True):
        op.result.replace_all_uses_with(result)
    olds: list[Operation] = list(bucket)
    for op in reversed(olds):
        Rewriter.erase_op(op)
