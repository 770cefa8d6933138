"""The rule of determinants."""

from __future__ import annotations

from distir.dialects.onnx_op import OnnxOp
from distir.dialects.tensors import shape_of
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, onnx_rule


@onnx_rule("Det")
def determinant(op: OnnxOp) -> Rule:
    """The rule of Det: matrices are parallel, each of them is whole."""
    builder = RuleBuilder(op)
    sizes = shape_of(op.operands[0])
    rank = len(sizes)
    dims = builder.whole_along(sizes, {rank - 2, rank - 1})
    return builder.rule([dims], [dims[:-2]])
