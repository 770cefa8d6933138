"""Sharding rules of matrix products in 8-bit floats, and of their scales."""

from __future__ import annotations

from dataclasses import replace

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.float8 import (
    Float8LinearOp,
    Float8ProductOp,
    Float8ScaleOp,
    ToFloat8Op,
)
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, train_rule


@train_rule("float8_linear")
def linear(op: Float8LinearOp) -> Rule:
    """
    Returns the sharding rule of a product that computes its own scales. The rule splits
    nothing; the ops of the product's decomposition can be split.
    """
    a, b = shape_of(op.a), shape_of(op.b)
    flops = 2 * b[1]
    for size in a:
        flops *= size
    return replace(Rule.replicated(op), flops=flops)


@train_rule("float8_scale")
def scale(op: Float8ScaleOp) -> Rule:
    """
    Returns the sharding rule of a scale. Each part of a tensor has its own scale, and
    the smallest of these scales is the scale of the whole tensor.
    """
    builder = RuleBuilder(op)
    shape, dim = shape_of(op.x), op.dimension
    dims = tuple(
        builder.factor(size, "reduction", "min")
        if dim is None or axis == dim
        else builder.factor(size)
        for axis, size in enumerate(shape)
    )
    rows = tuple(() if axis == dim else own for axis, own in enumerate(dims))
    return builder.rule([dims], [() if dim is None else rows])


@train_rule("to_float8")
def to_float8(op: ToFloat8Op) -> Rule:
    """Returns the sharding rule of rounding to 8 bits. Every dimension is parallel."""
    builder = RuleBuilder(op)
    dims = builder.factors(shape_of(op.x))
    return builder.rule([dims, builder.aligned(op.scale, dims)], [dims])


@train_rule("float8_product")
def product(op: Float8ProductOp) -> Rule:
    """
    Returns the sharding rule of a matrix product with scales, `([..., i, k], [k, j]) ->
    [..., i, j]`. The scales are split with the rows and columns.
    """
    builder = RuleBuilder(op)
    *rows, inner_size = shape_of(op.a)
    outer = builder.factors(rows)
    column = builder.factor(shape_of(op.b)[1])
    inner = builder.factor(inner_size, "reduction")
    return builder.rule(
        [
            (*outer, inner),
            (inner, column),
            (*outer, ()) if shape_of(op.scale_a) else (),
            ((), column) if shape_of(op.scale_b) else (),
        ],
        [(*outer, column)],
        flops=builder.contraction_flops(),
    )
