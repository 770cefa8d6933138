"""Rules of logarithms of determinants: matrices are parallel, each of them is whole."""

from __future__ import annotations

from distir.dialects.tensors import shape_of
from distir.dialects.train_ops.determinant import SlogdetGradOp, SlogdetOp
from distir.sharding.rule import Rule
from distir.sharding.rules.builder import Dims, RuleBuilder, train_rule


def _dims(builder: RuleBuilder, shape: tuple[int, ...]) -> tuple[Dims, int]:
    """Returns the dimensions of matrices, and the work of all of them."""
    rank = len(shape)
    dims = builder.whole_along(shape, {rank - 2, rank - 1})
    count = 1
    for size in shape:
        count *= size
    return dims, count * shape[-1]


@train_rule("slogdet")
def logarithm(op: SlogdetOp) -> Rule:
    """A factorisation: 2/3 n^3 operations."""
    builder = RuleBuilder(op)
    dims, work = _dims(builder, shape_of(op.x))
    return builder.rule([dims], [dims[:-2], dims[:-2]], flops=2 * work // 3)


@train_rule("slogdet_grad")
def logarithm_gradient(op: SlogdetGradOp) -> Rule:
    """A factorisation and an inverse: 2 n^3 operations; linear in the gradient."""
    builder = RuleBuilder(op)
    dims, work = _dims(builder, shape_of(op.x))
    return builder.rule([dims[:-2], dims], [dims], linear=[(0,)], flops=2 * work)
