"""Gradient rules of mixtures of experts."""

from __future__ import annotations

from distir.dialects.train_ops.experts import (
    CombineOp,
    CombineWeightsGradOp,
    DispatchOp,
    GroupedProductGradOp,
    GroupedProductOp,
)
from distir.errors import DistIRError
from distir.gradients.rule import GradientBuilder, Gradients, gradient_rule
from distir.gradients.rules.arithmetic import is_wanted
from distir.program import describe


@gradient_rule("train.dispatch")
def dispatch(op: DispatchOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of `train.dispatch`: a token's gradient is the sum of the gradients of
    the rows to which the token is copied. Raises DistIRError if the op has weights.
    """
    (dy,) = gradients
    assert dy is not None
    if op.weights is not None:
        raise DistIRError(
            f"{describe(op)} with weights has no gradient rule; multiply the rows that "
            f"train.combine adds up instead"
        )
    return [
        build.result(CombineOp(dy, op.slots, op.rows, result=op.x.type)),
        None,
        None,
    ]


@gradient_rule("train.combine")
def combine(op: CombineOp, gradients: Gradients, build: GradientBuilder) -> Gradients:
    """
    Gradient rule of `train.combine`: the gradient of a row is the gradient of the row's
    token times the row's weight.
    """
    (dy,) = gradients
    assert dy is not None
    dx = build.result(DispatchOp(dy, op.slots, op.rows, op.weights, result=op.x.type))
    if op.weights is None:
        return [dx, None, None]
    d_weights = None
    if is_wanted(op.weights):
        made = CombineWeightsGradOp(op.x, op.slots, dy, result=op.weights.type)
        d_weights = build.result(made)
    return [dx, None, None, d_weights]


@gradient_rule("train.grouped_product")
def grouped_product(
    op: GroupedProductOp, gradients: Gradients, build: GradientBuilder
) -> Gradients:
    """
    Gradient rule of `train.grouped_product`: `dx = dy W^T` and `dW = x^T dy`, where W
    is the matrix of each row's expert.
    """
    (dy,) = gradients
    assert dy is not None
    transposed = op.transposed is not None
    taken = None if op.taken is None else op.taken.value.data
    dx = d_matrices = None
    if is_wanted(op.x):
        by_rows = GroupedProductOp(
            dy,
            op.rows,
            op.matrices,
            transposed=not transposed,
            taken=taken,
            result=op.x.type,
        )
        dx = build.result(by_rows)
    if is_wanted(op.matrices):
        summed = GroupedProductGradOp(
            op.x,
            op.rows,
            dy,
            transposed=transposed,
            taken=taken,
            matrices=op.matrices.type,
        )
        d_matrices = build.result(summed)
    return [dx, None, d_matrices]
