"""
Rules of the gradients of softmax, normalisation layers and activations. All are linear
in the gradient that comes in.
"""

from __future__ import annotations

from distir.dialects.train_ops.activation import GeluGradOp, SwishGradOp
from distir.dialects.train_ops.normalization import NormGradOp
from distir.dialects.train_ops.softmax import SoftmaxFamilyGradOp
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, shape, train_rule
from distir.sharding.rules.normalization import whole_along


@train_rule("softmax_grad", "log_softmax_grad")
def softmax_gradient(op: SoftmaxFamilyGradOp) -> Rule:
    """The normalised dimension is whole."""
    builder = RuleBuilder(op)
    dims = whole_along(builder, shape(op.y), {op.dimension})
    return builder.rule([dims, dims], [dims], linear=[(0,)])


@train_rule("layer_norm_grad", "rms_norm_grad")
def normalization_gradient(op: NormGradOp) -> Rule:
    """Rows are parallel for `dx`; the gradients of scale and bias are sums over them."""
    builder = RuleBuilder(op)
    sizes, axis = shape(op.x), op.dimension
    dims = whole_along(builder, sizes, range(axis, len(sizes)))
    rows, columns = dims[:axis], dims[axis:]
    return builder.rule(
        [dims, dims, columns],
        [dims, columns, columns],
        linear=[(0,)],
        reduced={1: rows, 2: rows} if len(op.results) > 2 else {1: rows},
    )


@train_rule("gelu_grad", "swish_grad")
def activation_gradient(op: GeluGradOp | SwishGradOp) -> Rule:
    """Every dimension is parallel."""
    builder = RuleBuilder(op)
    dims = builder.factors(shape(op.x))
    return builder.rule([dims, dims], [dims], linear=[(0,)])
