"""
Sharding rules of flattening. Devices may hold different blocks of a tensor, but no
parts of a block.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.flattening import (
    FlattenOp,
    UnflattenOp,
    blocks_attribute,
)
from distir.dialects.train_ops.splits import Split
from distir.program import made_with
from distir.sharding.local import LocalContext, local_form
from distir.sharding.rule import Dim, Rule
from distir.sharding.rules.builder import ANY, Dims, RuleBuilder, train_rule


@train_rule("flatten")
def flatten(op: FlattenOp) -> Rule:
    """
    Returns the sharding rule of flattening. Blocks are parallel. Partial values pass,
    because elements only move.
    """
    builder = RuleBuilder(op)
    tensor, flat = _dims(builder, shape_of(op.tensor), op.parts)
    return builder.rule([tensor], [flat], linear=[(0,)], reductions=ANY)


@train_rule("unflatten")
def unflatten(op: UnflattenOp) -> Rule:
    """
    Returns the sharding rule of unflattening. Blocks are parallel. Partial values pass,
    because elements only move.
    """
    builder = RuleBuilder(op)
    tensor, flat = _dims(builder, shape_of(op.tensor), op.parts)
    return builder.rule([flat], [tensor], linear=[(0,)], reductions=ANY)


def _dims(
    builder: RuleBuilder, sizes: Sequence[int], splits: Sequence[Split]
) -> tuple[Dims, Dims]:
    """
    Returns the dimensions of the tensor and the dimensions of the flat tensor. The
    dimensions have no factors if the blocks of one split cut the blocks of another
    split.
    """
    blocks = [builder.factor(split.parts) for split in splits]
    dims: list[Dim] = []
    for dim, size in enumerate(sizes):
        own = [(b, s) for b, s in zip(blocks, splits, strict=True) if s.dim == dim]
        factors = _cut(builder, size, own) if own else ()
        if factors is None:  # the runs of one split cut those of another
            return ((),) * len(sizes), ((),) * (1 + len(splits))
        dims.append(factors)
    return tuple(dims), ((), *blocks)


def _cut(
    builder: RuleBuilder, size: int, splits: Sequence[tuple[Dim, Split]]
) -> Dim | None:
    """
    Returns the factors of a dimension of `size` elements that `splits` cut one after
    the other: the parts of each split, and between them the elements that stay
    together. Returns None if no list of factors describes the cuts.
    """
    if not size:  # nothing to cut
        return None
    pieces: list[tuple[int, Dim | None]] = [(size, None)]
    for block, (_, parts, run) in splits:
        if parts == 1:
            continue
        # A run is whole pieces, counted from the minor end, and a part of the next one.
        at = len(pieces) - 1
        while at >= 0 and (pieces[at][1] is not None or run % pieces[at][0] == 0):
            run //= pieces[at][0] if pieces[at][1] is None else 1
            at -= 1
        if at < 0 or pieces[at][0] % (run * parts):
            return None
        major = pieces[at][0] // (run * parts)
        pieces[at : at + 1] = [(major, None), (parts, block), (run, None)]
    return tuple(
        factor
        for count, own in pieces
        for factor in (builder.factor(count, "replicate") if own is None else own)
    )


@local_form("train.flatten", "train.unflatten")
def local_flattening(context: LocalContext) -> Sequence[Operation]:
    """
    Returns one device's ops for flattening and unflattening: the op with the blocks
    that are on this device.
    """
    op = context.op
    assert isinstance(op, FlattenOp | UnflattenOp)
    rule = context.rule
    (flat,) = rule.results if isinstance(op, FlattenOp) else rule.operands
    apart = [context.parts_of(dim[0]) if dim else 1 for dim in flat[1:]]
    here: list[Split] = []
    for i, (dim, parts, run) in enumerate(op.parts):
        # What later splits take out of a run of this one is not here.
        for j, other in enumerate(op.parts[i + 1 :], i + 1):
            if other.dim == dim and other.parts * other.run <= run:
                run //= apart[j]
        here.append(Split(dim, parts // apart[i], run))
    new = made_with(op, context.operands, context.result_types)
    if here:
        new.properties["blocks"] = blocks_attribute(here)
    return [new]
