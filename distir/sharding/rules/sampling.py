"""The rule of sampling images at the points of a grid."""

from __future__ import annotations

from distir.dialects.onnx_op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, onnx_rule


@onnx_rule("GridSample")
def grid_sample(op: OnnxOp) -> Rule:
    """
    The rule of GridSample: samples, channels and points are parallel, images are whole; it
    is linear in the images.
    """
    builder = RuleBuilder(op)
    x, grid = (shape_of(value) for value in op.operands)
    sample, channels = builder.factors(x[:2])
    space = builder.factors(x[2:], "replicate")
    points = builder.factors(grid[1:-1])
    return builder.rule(
        [(sample, channels, *space), (sample, *points, ())],
        [(sample, channels, *points)],
        linear=[(0,)],
    )
