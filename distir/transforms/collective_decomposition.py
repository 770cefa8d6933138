"""Replaces collectives that a target cannot run by other collectives."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.rewriter import InsertPoint, Rewriter

from distir.dialects.collective_ops.base import CollectiveOp, bucket_of
from distir.dialects.collective_ops.over_axes import (
    AllGatherOp,
    AllReduceOp,
    AllToAllOp,
    ReduceScatterOp,
    SliceOp,
)
from distir.dialects.dist import Layout, layout_of, with_layout
from distir.errors import DistIRError
from distir.program import functions

DECOMPOSED = ("reduce_scatter", "all_to_all")
"""The kinds of collectives that `decompose` can write with others."""


def decompose(module: ModuleOp, kinds: Sequence[str] = DECOMPOSED) -> None:
    """
    Replaces each collective of the given kinds in a distributed program by two ops with
    the same result: a reduce-scatter by an all-reduce and a slice, an all-to-all by an
    all-gather and a slice. Devices then send more bytes: twice as many for a
    reduce-scatter, and n times as many for an all-to-all among n devices. The
    collectives of a bucket stay in one message. Raises DistIRError for a kind that
    cannot be replaced.
    """
    unknown = [kind for kind in kinds if kind not in DECOMPOSED]
    if unknown:
        raise DistIRError(
            f"decompose-collectives: {unknown[0]!r} is no collective that is made of "
            f"others; these are {', '.join(DECOMPOSED)}"
        )
    for function in functions(module).values():
        for op in list(function.walk()):
            # The first of a bucket has replaced the others.
            if op.parent is None or not isinstance(op, ReduceScatterOp | AllToAllOp):
                continue
            if op.kind in kinds:
                _decompose(bucket_of(op))


def _decompose(bucket: Sequence[ReduceScatterOp | AllToAllOp]) -> None:
    """Replaces the collectives of one message."""
    firsts = [_first(op) for op in bucket]
    # The slices come after all of them: between them they would divide the message.
    for op, first in zip(bucket, firsts, strict=True):
        first.attributes |= op.attributes
        first.location = op.location
        Rewriter.insert_op(first, InsertPoint.before(bucket[0]))
    for op, first in zip(bucket, firsts, strict=True):
        part = SliceOp(first.result, op.axis_names, op.result.type)
        part.location = op.location
        part.result.name_hint = op.result.name_hint
        Rewriter.insert_op(part, InsertPoint.before(bucket[0]))
        op.result.replace_all_uses_with(part.result)
    for op in bucket:
        Rewriter.erase_op(op)


def _first(op: ReduceScatterOp | AllToAllOp) -> CollectiveOp:
    """
    Returns the all-reduce or all-gather that replaces `op`. Its result holds the whole
    value on all devices of a group.
    """
    before, after, type_ = layout_of(op.source), layout_of(op.result), op.source.type
    assert before is not None and after is not None and isinstance(type_, TensorType)
    if isinstance(op, ReduceScatterOp):
        whole = with_layout(type_, before.without_partial(op.axis_names))
        return AllReduceOp(op.source, op.axis_names, whole)
    whole = with_layout(type_, _gathered(op, before, after, type_.get_num_dims()))
    return AllGatherOp(op.source, op.axis_names, whole)


def _gathered(op: AllToAllOp, before: Layout, after: Layout, rank: int) -> Layout:
    """
    Returns the layout `before` without the split that an all-to-all removes. `after` is
    the layout of the all-to-all's result, and `rank` the number of dimensions.
    """
    dim = next(i for i in range(rank) if len(before.dim(i)) > len(after.dim(i)))
    return before.with_dim(dim, before.dim(dim)[: -len(op.axis_names)], rank)
