"""
Sharding rules of narrow floats in blocks. A dimension that blocks divide has two
factors: its blocks, which devices may split, and the elements of a block, which stay
together.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.block_floats import (
    BlockLinearOp,
    BlockProductOp,
    QuantizeBlocksOp,
)
from distir.sharding.rule import Dim, Kind, Rule
from distir.sharding.rules.builder import RuleBuilder, train_rule


@train_rule("quantize_blocks")
def quantize(op: QuantizeBlocksOp) -> Rule:
    """Returns the sharding rule of a conversion to blocks."""
    builder = RuleBuilder(op)
    dims: list[Dim] = []
    scales: list[Dim] = []
    for axis, size in enumerate(shape_of(op.x)):
        if op.square is not None or axis == op.dimension:
            blocks, inside = _in_blocks(builder, size, op.format.size)
        else:
            blocks, inside = builder.factor(size), ()
        dims.append((*blocks, *inside))
        scales.append(blocks)
    numbers = () if op.tensor_scale is None else ((),)
    return builder.rule(
        [tuple(dims), *numbers],
        [tuple(dims), tuple(scales)],
    )


@train_rule("block_product")
def product(op: BlockProductOp) -> Rule:
    """
    Returns the sharding rule of a product of blocks, `([..., i, k], [k, j]) -> [..., i,
    j]`, where `k` is divided into blocks, and with square blocks `j` too.
    """
    builder, size = RuleBuilder(op), op.format.size
    *rows, length = shape_of(op.a)
    columns = shape_of(op.b)[1]
    outer = builder.factors(rows)
    if op.square is None:
        column = across = builder.factor(columns)
    else:
        across, inside = _in_blocks(builder, columns, size)
        column = (*across, *inside)
    blocks, inside = _in_blocks(builder, length, size, "reduction")
    inner = (*blocks, *inside)
    numbers = [()] * (len(op.operands) - 4)
    return builder.rule(
        [
            (*outer, inner),
            (inner, column),
            (*outer, blocks),
            (blocks, across),
            *numbers,
        ],
        [(*outer, column)],
        flops=2 * prod(rows) * length * columns,
    )


@train_rule("block_linear")
def linear(op: BlockLinearOp) -> Rule:
    """
    Returns the sharding rule of a product that converts its own factors. The rule
    splits nothing; the ops of the product's decomposition can be split.
    """
    flops = 2 * prod(shape_of(op.a)) * shape_of(op.b)[1]
    return replace(Rule.replicated(op), flops=flops)


def _in_blocks(
    builder: RuleBuilder, length: int, size: int, kind: Kind = "parallel"
) -> tuple[Dim, Dim]:
    """
    Returns the factor for the blocks, and the factor for the elements of a block, of a
    dimension with `length` elements in blocks of `size`.
    """
    return builder.factor(length // size, kind), builder.factor(size, "replicate")
