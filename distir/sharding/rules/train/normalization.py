"""Rules of the gradients of normalisation layers, which are linear in what comes in."""

from __future__ import annotations

from distir.dialects.train_ops.normalization import NormGradOp
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import RuleBuilder, shape, train_rule


@train_rule("layer_norm_grad", "rms_norm_grad")
def normalization_gradient(op: NormGradOp) -> Rule:
    """Rows are parallel for `dx`; the gradients of scale and bias are sums over them."""
    builder = RuleBuilder(op)
    sizes, axis = shape(op.x), op.dimension
    dims = builder.whole_along(sizes, range(axis, len(sizes)))
    rows, columns = dims[:axis], dims[axis:]
    return builder.rule(
        [dims, dims, columns],
        [dims, columns, columns],
        linear=[(0,)],
        reduced={1: rows, 2: rows} if len(op.results) > 2 else {1: rows},
    )
