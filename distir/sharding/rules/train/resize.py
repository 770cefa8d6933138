"""The rule of the gradient of resizing."""

from __future__ import annotations

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.resize import ResizeGradOp
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, train_rule


@train_rule("resize_grad")
def resize_gradient(op: ResizeGradOp) -> Rule:
    """
    The rule of the gradient of resizing: dimensions that keep their size are parallel,
    resized ones are whole; linear.
    """
    builder, resized = RuleBuilder(op), op.resized
    before = tuple(
        builder.factor(size, "replicate" if dim in resized else "parallel")
        for dim, size in enumerate(shape_of(op.dy))
    )
    after = tuple(
        builder.factor(size, "replicate") if dim in resized else before[dim]
        for dim, size in enumerate(shape_of(op.dx))
    )
    return builder.rule([before], [after], linear=[(0,)])
