"""Rules of the gradients of sampling at the points of a grid."""

from __future__ import annotations

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.sampling import (
    GridSampleGradGridOp,
    GridSampleGradInputOp,
)
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, train_rule


@train_rule("grid_sample_grad_input")
def of_image(op: GridSampleGradInputOp) -> Rule:
    """The gradient of the images is a sum over points; linear in the incoming one."""
    builder = RuleBuilder(op)
    sizes = shape_of(op.dx)
    sample, channels = builder.factors(sizes[:2])
    space = builder.factors(sizes[2:], "replicate")
    points = builder.factors(shape_of(op.grid)[1:-1], "reduction")
    return builder.rule(
        [(sample, channels, *points), (sample, *points, ())],
        [(sample, channels, *space)],
        linear=[(0,)],
    )


@train_rule("grid_sample_grad_grid")
def of_grid(op: GridSampleGradGridOp) -> Rule:
    """The gradient of the grid is a sum over channels; linear in the incoming one."""
    builder = RuleBuilder(op)
    sizes = shape_of(op.x)
    sample = builder.factor(sizes[0])
    channels = builder.factor(sizes[1], "reduction")
    space = builder.factors(sizes[2:], "replicate")
    points = builder.factors(shape_of(op.grid)[1:-1])
    grid = (sample, *points, ())
    return builder.rule(
        [(sample, channels, *points), (sample, channels, *space), grid],
        [grid],
        linear=[(0,)],
    )
