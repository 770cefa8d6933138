"""
Rules of normalisation layers in training, which keep their statistics, and of their
gradients.
"""

from __future__ import annotations

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.normalization import (
    LayerNormGradOp,
    LayerNormOp,
    NormalizingOp,
    RmsNormGradOp,
    RmsNormOp,
)
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import Dims, RuleBuilder, train_rule


def _dims(builder: RuleBuilder, op: NormalizingOp) -> tuple[Dims, Dims, Dims]:
    """Returns the dimensions of `x`, of `scale` and of a statistic."""
    sizes, axis = shape_of(op.x), op.dimension
    dims = builder.whole_along(sizes, range(axis, len(sizes)))
    return dims, dims[axis:], (*dims[:axis], *(() for _ in sizes[axis:]))


@train_rule("layer_norm")
def layer_norm(op: LayerNormOp) -> Rule:
    """The rule of layer normalisation: rows are parallel."""
    builder = RuleBuilder(op)
    dims, columns, statistic = _dims(builder, op)
    bias = [] if op.bias is None else [columns]
    return builder.rule([dims, columns, *bias], [dims, statistic, statistic])


@train_rule("rms_norm")
def rms_norm(op: RmsNormOp) -> Rule:
    """The rule of RMS normalisation: rows are parallel."""
    builder = RuleBuilder(op)
    dims, columns, statistic = _dims(builder, op)
    return builder.rule([dims, columns], [dims, statistic])


@train_rule("layer_norm_grad")
def layer_norm_gradient(op: LayerNormGradOp) -> Rule:
    """
    The rule of the gradients of layer normalisation: rows are parallel for `dx`; the
    gradients of scale and bias are sums over them.
    """
    builder = RuleBuilder(op)
    dims, columns, statistic = _dims(builder, op)
    rows = dims[: op.dimension]
    return builder.rule(
        [dims, dims, columns, statistic, statistic],
        [dims, columns, columns],
        linear=[(0,)],
        reduced={1: rows, 2: rows} if op.dbias is not None else {1: rows},
    )


@train_rule("rms_norm_grad")
def rms_norm_gradient(op: RmsNormGradOp) -> Rule:
    """
    The rule of the gradients of RMS normalisation: rows are parallel for `dx`; the gradient
    of the scale is a sum over them.
    """
    builder = RuleBuilder(op)
    dims, columns, statistic = _dims(builder, op)
    return builder.rule(
        [dims, dims, columns, statistic],
        [dims, columns],
        linear=[(0,)],
        reduced={1: dims[: op.dimension]},
    )
