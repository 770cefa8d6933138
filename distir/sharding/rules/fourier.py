"""The rule of Fourier transforms."""

from __future__ import annotations

from distir.dialects.onnx_ops.op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import (
    RuleBuilder,
    constant_axes,
    onnx_rule,
)


@onnx_rule("DFT")
def transform(op: OnnxOp) -> Rule:
    """
    The rule of DFT: the dimension that is transformed, and the last one, of real and imaginary
    parts, are whole; others are parallel. It is linear.
    """
    builder = RuleBuilder(op)
    source, target = shape_of(op.operands[0]), shape_of(op.results[0])
    rank = len(source)
    axes = [rank - 2] if op.input(2) is None else constant_axes(op, 2, rank)
    if axes is None:
        return Rule.replicated(op)
    whole = {*axes, rank - 1}
    before = builder.whole_along(source, whole)
    after = tuple(
        builder.factor(size, "replicate") if dim in whole else before[dim]
        for dim, size in enumerate(target)
    )
    return builder.rule([before], [after], linear=[(0,)])
