"""Replaces the collectives that travel in one message by one op."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.collective_ops.base import bucket_of
from distir.dialects.collective_ops.rank_form import InRankForm, RankAllGatherOp
from distir.dialects.dist_attributes import SCOPE
from distir.dialects.torch import MessageOp
from distir.lowering.rewrites.sharing import SharedMemory
from distir.program import entry_function, functions, updated_arguments
from distir.transforms.projection import MESH


def fuse_messages(module: ModuleOp) -> None:
    """
    Replaces the collectives of each message by one op, in every function. All-gathers
    of the entry function whose results update arguments write into the memory of these
    arguments if possible.
    """
    entry, memory = entry_function(module), SharedMemory.of(module)
    for op in list(entry.body.block.ops):
        if not isinstance(op, RankAllGatherOp) or op.parent is None:
            continue  # another op, or one whose message has been made
        if not op.is_joined and not op.is_asynchronous:
            bucket = bucket_of(op)
            targets = _overwritten(bucket, entry, memory)
            if targets:
                _replace(bucket, targets)
    for function in functions(module).values():
        for op in list(function.body.block.ops):
            if not isinstance(op, InRankForm) or op.is_joined or op.parent is None:
                continue
            bucket = bucket_of(op)
            if len(bucket) > 1:
                _replace(bucket)


def _overwritten(
    bucket: Sequence[InRankForm], entry: FuncOp, memory: SharedMemory
) -> list[SSAValue]:
    """
    Returns the arguments of the program into whose memory the results of `bucket` can
    be gathered. Each result must update an argument that has no use after the
    collectives. Returns an empty list unless this holds for all results.
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


def _replace(bucket: Sequence[InRankForm], targets: Sequence[SSAValue] = ()) -> None:
    first, new = bucket[0], MessageOp(bucket, targets)
    for key in (MESH, SCOPE):
        if key in first.attributes:
            new.attributes[key] = first.attributes[key]
    Rewriter.insert_op(new, InsertPoint.before(first))
    for result, op in zip(new.outputs, bucket, strict=True):
        result.name_hint = op.result.name_hint
        op.result.replace_all_uses_with(result)
    olds: list[Operation] = list(bucket)
    for op in reversed(olds):
        Rewriter.erase_op(op)
